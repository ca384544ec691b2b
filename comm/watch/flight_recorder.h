// One rank's record of its last operations. Private to comm/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/core/flight_options.h>
#include <sherd/comm/watch/abort_domain.h>

namespace sherd::comm {

/// Nanoseconds since the clock's epoch.
template <class Clock>
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Name and progress of a communicator in the records of its ranks.
struct GroupLabel {
  GroupLabel(std::string its_name, std::vector<int> ranks)
      : name(std::move(its_name)), world_ranks(std::move(ranks)) {}

  const std::string name;  // the same on all its ranks, and no other's of the launch
  const std::vector<int> world_ranks;
  /// Progress of this rank: recoveries of the launch at its last call, and the collectives and splits since
  /// then.
  std::atomic<uint64_t> epoch{0};
  std::atomic<int64_t> calls{0}, splits{0};
};

/// One operation of a rank. Times are nanoseconds of the steady clock; 0: not reached.
struct FlightRecord {
  enum class State : uint8_t {
    queued,   // called by the host; its stream has not reached it
    running,  // waits for its peers or moves data
    handed,   // given to the device, which does not report its end here
    done,
    failed
  };
  int64_t number = 0;  // among the rank's operations, from 1; 0: none yet
  std::shared_ptr<const GroupLabel> group = {};
  const char* op = "";
  int64_t sequence = 0;
  uint64_t epoch = 0;
  Purpose purpose = {};
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  State state = State::queued;
  int root = -1;  // ranks of the group
  int peer = -1;
  int64_t elements = 0;
  uint64_t counts = 0;  // hash of the ranks' counts, where they differ and all ranks know them; else 0
  int64_t issued_ns = 0, started_ns = 0, finished_ns = 0;
  int64_t started_wall_ns = 0;  // since 1970
};

const char* name_of(FlightRecord::State state);

/// Ring of the last operations. Thread-safe. Shared by a rank's communicators, side channels included.
class FlightRecorder {
 public:
  /// @throws InvalidArgument for invalid options; IoError when the folder cannot be made.
  FlightRecorder(FlightRecorderOptions options, int world_rank, int world_size);

  int world_rank() const { return world_rank_; }

  /// Adds a communicator to the records, for as long as it exists.
  void add(const std::shared_ptr<const GroupLabel>& group);
  /// Records a call of the rank. @returns its number, which start() and end() take.
  int64_t issue(const std::shared_ptr<const GroupLabel>& group, const Call& call, uint64_t epoch, int peer);
  void start(int64_t number);
  void end(int64_t number, FlightRecord::State state);

  /// Runs the work of an operation, on the thread that does it. Appends the path of this rank's file to a
  /// CommError that leaves it.
  template <class Work>
  decltype(auto) run(int64_t number, Work work, FlightRecord::State good = FlightRecord::State::done) {
    const Running running(*this, number, good);
    try {
      return work();
    } catch (const PeerFailure& e) {
      throw PeerFailure(e.what() + written(e.what()), e.failed_rank());
    } catch (const CommError& e) {
      throw CommError(e.what() + written(e.what()), e.failed_rank());
    }
  }

  /// Describes the operation that the rank started last, for messages: "barrier #1 (0 bytes) of 'world', done
  /// 512 ms ago"; "" without records. `before` ends the time: "512 ms <before>".
  std::string last(const char* before = "ago") const;

  /// Writes the file after a failure of the launch, once per recovery. Never throws.
  void write(const std::string& cause) noexcept;

  static std::string file_name(int world_rank);

 private:
  class Running {
   public:
    Running(FlightRecorder& recorder, int64_t number, FlightRecord::State good)
        : recorder_(recorder), number_(number), good_(good), exceptions_(std::uncaught_exceptions()) {
      recorder_.start(number_);
    }
    ~Running() {
      recorder_.end(number_, std::uncaught_exceptions() > exceptions_ ? FlightRecord::State::failed : good_);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    FlightRecorder& recorder_;
    const int64_t number_;
    const FlightRecord::State good_;
    const int exceptions_;
  };

  /// Returns a clause about the file for the text of an error, after write(); "" without a folder.
  std::string written(const std::string& cause) noexcept;
  std::string content(const std::string& cause) const;
  void write_file(const std::string& text) const;
  FlightRecord* find(int64_t number);

  const FlightRecorderOptions options_;
  const int world_rank_, world_size_;

  mutable std::mutex mutex_;  // these under it
  std::vector<FlightRecord> ring_;
  int64_t recorded_ = 0;
  uint64_t epoch_ = 0;
  std::list<std::weak_ptr<const GroupLabel>> groups_;

  std::mutex file_mutex_;  // before mutex_
  bool attempted_ = false;
  uint64_t attempted_epoch_ = 0;
  std::string problem_;  // why writing the file failed
};

}  // namespace sherd::comm
