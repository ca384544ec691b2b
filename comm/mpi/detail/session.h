// One process's part of a world: the MPI thread, membership, and the failure watchdog. Private to comm/mpi.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/mpi/detail/control_message.h>
#include <sherd/comm/mpi/detail/engine.h>
#include <sherd/comm/mpi/detail/pulse.h>
#include <sherd/comm/mpi/mpi_options.h>
#include <sherd/comm/watch/abort_domain.h>
#include <sherd/comm/watch/flight_recorder.h>

namespace sherd::mpi {

/// Receiver of the control messages to one rank of one group.
class Recipient {
 public:
  /// Called on the engine's thread.
  virtual void deliver(ControlMessage message) = 0;

 protected:
  ~Recipient() = default;
};

/// Thread-safe. Exists as long as a communicator or a queued operation of its world.
class Session {
 public:
  /// `process_of` by world rank; `recorders` of the ranks of this process. @throws as make_mpi_world().
  Session(std::span<const int> process_of, std::vector<std::shared_ptr<comm::FlightRecorder>> recorders,
          std::shared_ptr<Store> store, const MpiOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const MpiOptions& options() const { return options_; }
  comm::AbortDomain& domain() { return domain_; }
  Engine& engine() { return *engine_; }
  int process_of(int world_rank) const { return process_of_[static_cast<size_t>(world_rank)]; }

  /// Returns the first of `count` tags that no transfer of this process uses. Tags repeat after as many calls
  /// as MPI has tags.
  int take_tags(int count);

  /// Registers `recipient` for the control messages to this rank of the group, including earlier ones.
  void enter(uint64_t group, int rank, Recipient& recipient);
  void forget(uint64_t group, int rank);

  /// Counts a call as queued; ran(): as issued, or never queued. A call dropped by a failed stream stays
  /// queued: its rank counts as one that may still arrive, because it is about to report the failure.
  void queued(int world_rank);
  void ran(int world_rank);
  /// Announces that the rank makes no more calls; sent to the others once nothing of it is queued.
  void leave(int world_rank);

  /// Records a call of another rank.
  void heard(int world_rank, const std::string& group, const comm::Call& call);
  /// Describes the rank's last known call, for messages: of another process's rank its report when it left,
  /// else its last control message to this process; "" when unknown.
  std::string last_call(int world_rank) const;

 private:
  struct Heard {
    std::string group;
    comm::Call call;
    std::chrono::steady_clock::time_point time;
  };
  struct Presence {
    int64_t queued = 0;
    bool leaving = false, told = false;
  };
  void read(const std::string& bytes);
  void write_to_all(const ControlMessage& message);
  void tell_if_gone(int world_rank, Presence& presence);
  void watch();
  void look_at_store();
  void look_at_neighbour();
  void shut_down();
  void report_missing_shutdowns();

  const MpiOptions options_;
  const std::vector<int> process_of_;
  const std::vector<std::shared_ptr<comm::FlightRecorder>> recorders_;
  const std::shared_ptr<Store> store_;
  comm::AbortDomain domain_;
  const std::shared_ptr<comm::WaitPoint> point_;  // of the watchdog and of shutdown messages

  std::mutex tags_mutex_;
  int next_tag_ = Engine::kFirstTag;

  std::mutex recipients_mutex_;  // before a recipient's
  std::map<std::pair<uint64_t, int>, Recipient*> recipients_;
  std::map<std::pair<uint64_t, int>, std::vector<ControlMessage>> early_;

  std::mutex presence_mutex_;
  std::map<int, Presence> presence_;

  mutable std::mutex heard_mutex_;
  std::map<int, Heard> heard_;             // by world rank
  std::map<int, std::string> last_words_;  // of ranks that have left

  std::set<int> shutdowns_;  // processes; this and the next under point_'s mutex
  bool stop_ = false;
  bool announced_ = false;  // used by the watchdog alone

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Pulse> pulse_;  // used by the watchdog alone
  std::thread watch_;
};

}  // namespace sherd::mpi
