// State that the ranks of one communicator share.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/local/detail/collectives.h>
#include <sherd/comm/local/detail/local_world.h>
#include <sherd/comm/watch/queued_calls.h>

namespace sherd::local {

/// Arguments of a rank's split().
struct SplitRequest {
  int color = 0;
  int key = 0;
  std::chrono::milliseconds timeout{0};  // of the new group; 0: as this one's
  Purpose purpose = {};
};
inline std::string describe(const SplitRequest& s) { return comm::split_text(s.color, s.key, s.purpose); }

/// Group of ranks in one process. Thread-safe; `rank` is the rank that the calling thread acts for. Ranks are
/// indices in the group; messages name world ranks. Every function blocks the caller until its peers have
/// come.
/// @throws CommError as Communicator says.
class LocalGroup {
 public:
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks,
             std::chrono::milliseconds timeout);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  LocalWorld& world() { return *world_; }
  std::chrono::milliseconds timeout() const { return point_->timeout; }
  /// Returns the calls that are queued on the group. Exists as long as its group.
  static std::shared_ptr<comm::QueuedCalls> queued(const std::shared_ptr<LocalGroup>& group) {
    return {group, &group->queued_};
  }

  /// Runs a collective on the worker of the rank's stream; `context` is the stream's, `device` its device. With a
  /// native queue this issues, and orders the ranks' queues by events.
  void collective(int rank, const comm::Call& call, const CollectiveAlgorithm& move,
                  ExecutionContext& context, Device& device);
  void send(int rank, int peer, const comm::Call& call, ExecutionContext& context);
  void recv(int rank, int peer, const comm::Call& call, ExecutionContext& context, Device& device);
  /// Returns the new group and this rank's index in it.
  std::pair<std::shared_ptr<LocalGroup>, int> split(int rank, const SplitRequest& request);

 private:
  /// One message in transfer between an ordered pair of ranks.
  struct Mailbox {
    const comm::Call* posted = nullptr;
    bool taken = false;  // the receiver copies: the sender must stay
    bool done = false;
    std::shared_ptr<NativeEvent> ready, copied;  // events of the native queues
  };
  Mailbox& mailbox(int from, int to) { return mailboxes_[static_cast<size_t>(from * size() + to)]; }
  std::string place(int rank, const comm::Call& call, const char* preposition, int peer) const;
  class Message;
  /// Returns whether the world rank makes no more calls of the group. Call it with the wait point's mutex held.
  bool gone(int world_rank) { return domain().has_left(world_rank) && queued_.none(world_rank); }
  comm::AbortDomain& domain() { return world_->watch.domain(); }
  /// Adds the arrival times of a collective to the world's board.
  void count_arrivals();
  std::string make_groups();

  const std::shared_ptr<LocalWorld> world_;
  const std::vector<int> world_ranks_;
  const std::shared_ptr<comm::WaitPoint> point_;
  comm::QueuedCalls queued_;

  Rendezvous<const comm::Call> calls_;
  std::vector<const void*> sends_;
  std::vector<int64_t> arrival_times_;
  /// Events of the ranks' native queues: at the call, after the first phase, at the end. By rank.
  std::array<std::vector<std::shared_ptr<NativeEvent>>, 3> reached_;

  Rendezvous<const SplitRequest> splits_;
  std::vector<std::pair<std::shared_ptr<LocalGroup>, int>> split_results_;

  std::vector<Mailbox> mailboxes_;
};

}  // namespace sherd::local
