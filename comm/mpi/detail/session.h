// One process's part of a world: the MPI thread, membership, and the failure watchdog. Private to comm/mpi.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/mpi/detail/control_message.h>
#include <sherd/comm/mpi/detail/engine.h>
#include <sherd/comm/mpi/mpi_options.h>
#include <sherd/comm/watch/heartbeat.h>
#include <sherd/comm/watch/queued_calls.h>
#include <sherd/comm/watch/watch.h>
#include <sherd/comm/watch/watchdog.h>

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
  comm::Watch& watch() { return watch_; }
  comm::AbortDomain& domain() { return watch_.domain(); }
  Engine& engine() { return *engine_; }
  int process_of(int world_rank) const { return process_of_[static_cast<size_t>(world_rank)]; }

  /// Returns the first of `count` tags that no transfer of this process uses. Tags repeat after as many calls
  /// as MPI has tags.
  int take_tags(int count);

  /// Registers `recipient` for the control messages to this rank of the group, including earlier ones.
  void enter(uint64_t group, int rank, Recipient& recipient);
  void forget(uint64_t group, int rank);

  /// Returns the queued calls of this process's ranks. Exists as long as its session.
  static std::shared_ptr<comm::QueuedCalls> queued(const std::shared_ptr<Session>& session) {
    return {session, &session->queued_};
  }
  /// Announces that the rank makes no more calls; sent to the others once nothing of it is queued.
  void leave(int world_rank);

 private:
  /// Returns the first rank of the process, or -1.
  int rank_in(int process) const;
  void read(const std::string& bytes);
  void write_to_all(const ControlMessage& message);
  void announce_departure(int world_rank);
  /// Fails the launch when the successor sends no heartbeat.
  void check_successor();
  void shut_down();
  void report_missing_shutdowns();

  const MpiOptions options_;
  const std::vector<int> process_of_;
  const std::shared_ptr<Store> store_;
  comm::Watch watch_;
  comm::QueuedCalls queued_;

  std::mutex tags_mutex_;
  int next_tag_ = Engine::kFirstTag;

  std::mutex recipients_mutex_;  // before a recipient's
  std::map<std::pair<uint64_t, int>, Recipient*> recipients_;
  std::map<std::pair<uint64_t, int>, std::vector<ControlMessage>> early_;

  std::mutex leaving_mutex_;
  std::set<int> leaving_;  // ranks whose departure is not announced yet

  const std::shared_ptr<comm::WaitPoint> shutdown_point_;
  std::set<int> shutdowns_;  // processes; under shutdown_point_'s mutex

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<comm::Heartbeat> heartbeat_;  // used by the watchdog alone
  std::unique_ptr<comm::Watchdog> watchdog_;
};

}  // namespace sherd::mpi
