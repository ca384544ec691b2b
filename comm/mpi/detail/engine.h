// MPI thread of a process: the one thread that calls MPI for a world. Private to comm/mpi.
//
// One thread, because MPI then needs no more than MPI_THREAD_SERIALIZED, its progress never depends on what
// other threads do, and no lock is held inside it while others wait; nothing it calls blocks.
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

/// Bytes that go to a process or come from one. Those of one (sender, receiver, tag) match in order.
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
  /// All have ended: the memory is the caller's again.
  bool done() const { return open_.load(std::memory_order_acquire) == 0; }
  /// A transfer of it ended in an error of MPI: what it was to receive is not there. Known when done().
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Processes whose data has not come yet or, when all has, to which data is not sent yet; ascending.
  std::vector<int> late() const;

 private:
  friend class Engine;
  struct Open {
    int64_t receives = 0, sends = 0;
  };
  mutable std::mutex mutex_;
  std::map<int, Open> by_process_;  // under it
  std::vector<int> everybody_;      // of a reduction: MPI does not say whose data it waits for
  std::atomic<int64_t> open_{0};
  std::atomic<bool> failed_{false};
  std::function<void()> on_done_;
  std::shared_ptr<const void> keep_;
};

/// Thread-safe.
class Engine {
 public:
  /// Tags of transfers lie in [kFirstTag, tag_limit()).
  static constexpr int kFirstTag = 1;

  /// Called on the engine's thread.
  struct Handlers {
    /// A letter has come; those of one process in the order in which they were sent.
    std::function<void(std::string letter)> letter;
    /// An error of MPI.
    std::function<void(const std::string& cause)> failed;
    /// Every poll while the others have not come yet; what it throws, the constructor throws.
    std::function<void()> joining = {};
  };

  /// Every process of the job makes one, at the same time.
  /// @throws CommError, also when MPI is not initialised or lets only one thread call it, or when the others
  /// do not come within the timeout.
  Engine(const MpiOptions& options, Handlers handlers);
  /// Without close(): as if the launch had failed.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int process() const;
  int processes() const;
  int tag_limit() const;

  /// A short message, which the handler of its receiver gets; this process may write to itself.
  void write(int process, std::string letter);
  /// Starts transfers. `keep` lives until all have ended, whatever happens to the caller. `on_done` is called
  /// when they have, on the engine's thread.
  std::shared_ptr<Batch> start(const std::vector<Transfer>& transfers, std::shared_ptr<const void> keep,
                               std::function<void()> on_done);
  /// A communicator of MPI's for reductions: see ProcessGroup's constructor.
  std::shared_ptr<ProcessGroup> make_group(std::span<const int> processes, uint64_t id,
                                           std::chrono::milliseconds limit, const std::string& name);
  /// Starts a reduction of MPI's on the group, as start() does; `processes` are the group's. Those of one group begin in
  /// the same order everywhere.
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

  /// The launch has failed: data that still comes is taken and thrown away, so that its senders, too, get
  /// their memory back.
  void drain();
  /// Ends the thread when all that was started has ended, or after `patience`. Whatever MPI still uses then
  /// is never freed. `together`: every process is known to close, so that MPI's communicator can be freed.
  /// Returns whether all had ended.
  bool close(bool together, std::chrono::milliseconds patience);

 private:
  void attend(int change);
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::mpi
