// MPI thread of a process: the one thread that calls MPI for a world. Private to comm/mpi.
//
// One thread, because MPI then needs no more than MPI_THREAD_SERIALIZED, its progress does not depend on
// other threads, and no lock is held inside MPI while others wait. None of its calls blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <sherd/comm/mpi/mpi_options.h>

namespace sherd::mpi {

class ProcessGroup;
struct Reduction;

/// Data to or from a process. Transfers of one (sender, receiver, tag) match in order.
struct Transfer {
  bool sends = false;
  char* data = nullptr;
  int64_t bytes = 0;
  int process = 0;
  int tag = 0;
};

/// Transfers that are waited for together. Thread-safe.
class Batch {
 public:
  /// Returns whether all have ended: the caller may use the memory again.
  bool done() const { return open_.load(std::memory_order_acquire) == 0; }
  /// Returns whether a transfer ended in an error of MPI: its data is missing. Valid when done().
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Returns the processes whose data has not come yet or, when all has, to which data is not sent yet;
  /// ascending.
  std::vector<int> late() const;

 private:
  friend class Engine;
  friend class Requests;
  struct Open {
    int64_t receives = 0, sends = 0;
  };
  /// Changes the number of transfers that are open with a process.
  void count(int process, bool sends, int change);
  /// Ends one transfer, or the order that started them; the last one ends the batch.
  static void end_one(const std::shared_ptr<Batch>& batch);

  mutable std::mutex mutex_;
  std::map<int, Open> by_process_;  // under it
  std::vector<int> everybody_;      // of a reduction: MPI does not name the ranks that it waits for
  std::atomic<int64_t> open_{0};
  std::atomic<bool> failed_{false};
  std::function<void()> on_done_;
  std::shared_ptr<const void> keep_;
};

/// The MPI thread and its queue of orders. Thread-safe.
class Engine {
 public:
  /// Tags of transfers are in [kFirstTag, tag_limit()).
  static constexpr int kFirstTag = 1;

  /// Called on the engine's thread.
  struct Handlers {
    /// Receives a control message; those of one process in the order in which they were sent.
    std::function<void(std::string letter)> letter;
    /// Receives an error of MPI.
    std::function<void(const std::string& cause)> failed;
    /// Called at every poll while the others have not come yet; the constructor rethrows its exceptions.
    std::function<void()> joining = {};
  };

  /// Starts the thread. Every process of the job makes one, at the same time.
  /// @throws CommError, also when MPI is not initialised or lets only one thread call it, or when the others
  /// do not come within the timeout.
  Engine(const MpiOptions& options, Handlers handlers);
  /// Ends without waiting, unless close() was called: as after a failure of the launch.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int process() const;
  int processes() const;
  int tag_limit() const;

  /// Sends a control message, which the receiver's handler gets; this process may write to itself.
  void write(int process, std::string letter);
  /// Starts transfers. `keep` is held until all have ended, whatever happens to the caller. `on_done` is
  /// called then, on the engine's thread.
  std::shared_ptr<Batch> start(const std::vector<Transfer>& transfers, std::shared_ptr<const void> keep,
                               std::function<void()> on_done);
  /// Makes a communicator of MPI for reductions: see ProcessGroup's constructor.
  std::shared_ptr<ProcessGroup> make_group(std::span<const int> processes, uint64_t id,
                                           std::chrono::milliseconds limit, const std::string& name);
  /// Starts a reduction of MPI on the group, as start() does; `processes` are the group's. Reductions of one
  /// group begin in the same order on all processes.
  std::shared_ptr<Batch> start(const std::shared_ptr<ProcessGroup>& group, const Reduction& reduction,
                               std::vector<int> processes, std::shared_ptr<const void> keep,
                               std::function<void()> on_done);
  /// Marks a batch that no caller waits for any more: data it was to receive may stay away.
  void abandon(const std::shared_ptr<Batch>& batch);

  /// While it exists a caller waits for control messages: the thread polls for them without pauses.
  class Attention {
   public:
    explicit Attention(Engine& engine) : engine_(engine) { engine_.attend(1); }
    ~Attention() { engine_.attend(-1); }
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

   private:
    Engine& engine_;
  };

  /// Receives and drops data from now on, after a failure of the launch, so that its senders complete and may
  /// free their memory.
  void drain();
  /// Ends the thread when all operations have ended, or after `patience`. Memory that MPI still uses then is
  /// never freed. `together`: every process is known to close, so that MPI's communicator can be freed.
  /// Returns whether all had ended.
  bool close(bool together, std::chrono::milliseconds patience);

 private:
  void attend(int change);
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::mpi
