// One rank's part of one communicator: rendezvous with the other ranks and data movement. Private to
// comm/mpi.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/mpi/detail/process_group.h>
#include <sherd/comm/mpi/detail/session.h>
#include <sherd/comm/watch/arrival_board.h>
#include <sherd/comm/watch/watch.h>
#include <sherd/kernels/device/device.h>

namespace sherd::mpi {

/// Contiguous memory.
struct Piece {
  char* data = nullptr;
  int64_t bytes = 0;
};

/// One rank in one group. Ranks are indices in the group; messages name world ranks. Exists as long as its
/// communicator or an operation that is queued on it.
class Member final : public Recipient {
 public:
  /// Host-blocking with MpiOptions::library_order: all ranks of the group construct theirs. `name` is the
  /// same on all ranks of the group and unique in the world. `arrivals` is the rank's.
  Member(std::shared_ptr<Session> session, std::shared_ptr<Device> device,
         std::shared_ptr<comm::ArrivalBoard> arrivals, std::string name, std::vector<int> world_ranks,
         int rank, std::chrono::milliseconds timeout);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  Session& session() const { return *session_; }
  Device& device() const { return *device_; }
  const std::shared_ptr<Device>& shared_device() const { return device_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  int world_rank() const { return world_rank(rank_); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  const comm::ArrivalBoard& arrivals() const { return *arrivals_seen_; }
  /// Null unless MpiOptions::library_order.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  /// A call that all its ranks have reached. It is used by the thread that met for it, and destroyed before
  /// the member. No rank leaves it before its end unless it has lost the connection or withdraws.
  class Meeting final : comm::PendingCall {
   public:
    Meeting(Member& member, CallNumber number, std::vector<int> peers, std::string where,
            const Purpose& purpose);
    ~Meeting();
    Meeting(const Meeting&) = delete;
    Meeting& operator=(const Meeting&) = delete;

    /// Starts the transfers: sends[r] to rank r, recvs[r] from there; empty pieces and a rank's own are not
    /// sent. Transfers of one meeting match in order. `keep` holds the memory. Null when nothing has to move.
    std::shared_ptr<Batch> start(const std::vector<Piece>& sends, const std::vector<Piece>& recvs,
                                 std::shared_ptr<const void> keep);
    /// Starts a sum in MPI's own order; the member has a group().
    std::shared_ptr<Batch> start(const Reduction& reduction, std::shared_ptr<const void> keep);
    /// @throws CommError as Communicator says; the transfer is abandoned then.
    void finish(const std::shared_ptr<Batch>& batch);
    void exchange(const std::vector<Piece>& sends, const std::vector<Piece>& recvs,
                  std::shared_ptr<const void> keep) {
      finish(start(sends, recvs, std::move(keep)));
    }

   private:
    friend class Member;
    struct Arrivals {
      std::map<int, ControlMessage> messages;
      std::vector<int> withdrawn;
    };
    // With the mutex of the member's wait point held.
    Arrivals& arrivals() { return member_.arrivals_[number_]; }
    bool complete() override;
    std::vector<int> missing(bool gone) override;
    Description describe() override;
    /// Notifies every peer, so that none waits for this rank in vain.
    void withdraw() override;
    /// Sends the message about this call to every peer.
    void write(ControlMessage message);
    std::shared_ptr<Batch> started(std::shared_ptr<Batch> batch);
    std::function<void()> on_done() const;
    Member& member_;
    const CallNumber number_;
    const std::vector<int> peers_;  // other ranks
    const std::string where_;
    const Purpose purpose_;
    const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
    int tags_ = 0;                            // the peers' data come with tags_ + rank
    std::map<int, ControlMessage> messages_;  // of the peers
    std::vector<std::shared_ptr<Batch>> started_;
  };

  /// Waits until all ranks have reached the collective.
  /// @throws CommError on disagreement or timeout or when a rank has left, PeerFailure after an abort.
  std::unique_ptr<Meeting> meet(const comm::Call& call);
  /// The same for a send to, or a receive from, `peer`.
  std::unique_ptr<Meeting> meet_peer(const comm::Call& call, bool sends, int peer);
  /// Returns grow-only memory for the call that its thread runs; the handle keeps the memory alive.
  std::shared_ptr<char> scratch(int64_t bytes);
  /// Makes the new group's member for this rank. `timeout` 0: as this one's.
  std::shared_ptr<Member> split(int color, int key, std::chrono::milliseconds timeout,
                                const Purpose& purpose);

 private:
  void deliver(ControlMessage message) override;
  int process_of(int rank) const { return session_->process_of(world_rank(rank)); }
  std::vector<int> others() const;
  std::unique_ptr<Meeting> meet(CallNumber number, std::vector<int> peers, ControlMessage mine,
                                std::string where, const Purpose& purpose);
  /// Adds the arrivals at the collective before that one: each rank's call carries how long it waited there;
  /// the longer, the earlier it had arrived.
  void count_arrivals(const Meeting& meeting);
  /// Returns the peers of a meeting that run in those processes, as world ranks.
  std::vector<int> ranks_of(const Meeting& meeting, const std::vector<int>& processes) const;
  [[noreturn]] void raise_cause(std::unique_lock<std::mutex>& lock, const std::string& where, int withdrawn);
  std::string place(const std::string& what) const;

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<comm::ArrivalBoard> arrivals_seen_;
  const std::string name_;
  const uint64_t id_;
  const std::vector<int> world_ranks_;
  const int rank_;
  const std::shared_ptr<comm::WaitPoint> point_;
  std::shared_ptr<ProcessGroup> group_;
  int64_t splits_ = 0;
  int64_t waited_ns_ = 0;  // of the thread that meets: for the others in the last collective
  std::shared_ptr<char> scratch_;
  int64_t scratch_bytes_ = 0;

  // Under point_'s mutex.
  std::map<CallNumber, Meeting::Arrivals> arrivals_;
  std::map<std::pair<Lane, int>, int64_t> over_;  // the last number of each lane that is over
};

}  // namespace sherd::mpi
