// Calls beside training, for files: through the job's store instead of NCCL. So they take no memory and no processors of the
// device, and their order among training's collectives, which a background thread leaves open, does not matter. Private to
// comm/nccl.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/nccl/detail/session.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::nccl {

/// One rank's part of a group's calls, which are small: words and texts. One thread at a time.
class SideChannel {
 public:
  /// `name` and `world_ranks` of the group, the same on all its ranks.
  SideChannel(Session& session, std::string name, std::vector<int> world_ranks, int rank)
      : session_(session), name_(std::move(name)), world_ranks_(std::move(world_ranks)), rank_(rank) {}

  /// Returns whether run() has it: barriers, broadcasts, gathers, and reductions of i64.
  static bool has(comm::Verb verb, const comm::Call& call);
  /// Does the call, at the end of what is issued on the stream: waits for the device and for the peers.
  /// @throws CommError when a peer has left or does not come before the deadline; as Session::check().
  void run(ExecutionContext& context, comm::Verb verb, const comm::Call& call, const std::string& where,
           const Deadline& deadline);

 private:
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  /// Sets the key to any number of bytes, in values that the store takes.
  void put(const std::string& key, const std::string& bytes);
  /// Returns all that put() has set, whose first value is known.
  std::string rest(const std::string& key, std::string first, bool erase);
  /// Waits for the key, which `rank` sets. Leaves it.
  std::string await(const std::string& key, int rank, const std::string& where, const Deadline& deadline);
  /// Returns every rank's bytes on `root`; nothing elsewhere. Long ones come when the root asks for them, one after the other:
  /// the store has no room for all.
  std::vector<std::string> gather(const std::string& key, std::string mine, int root,
                                  const std::string& where, const Deadline& deadline);
  /// Returns root's bytes on every rank.
  std::string broadcast(const std::string& key, const std::string& bytes, int root, const std::string& where,
                        const Deadline& deadline);

  Session& session_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  const int rank_;
  std::vector<std::string> kept_;  // what the other ranks may still read, by keys
};

}  // namespace sherd::nccl
