// MPI thread of a process: the one thread that calls MPI for a world. Private to comm/mpi.
//
// One thread, because MPI then needs no more than MPI_THREAD_SERIALIZED, its progress does not depend on
// other threads, and no lock is held inside MPI while others wait. None of its calls blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sherd/comm/mpi/detail/batch.h>
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

/// The MPI thread and its queue of orders. Thread-safe.
class Engine {
 public:
  /// Tags of transfers are in [kFirstTag, tag_limit()).
  static constexpr int kFirstTag = 1;

  /// Called on the engine's thread.
  struct Handlers {
    /// Receives a control message; those of one process in the order in which they were sent.
    std::function<void(std::string message)> message;
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
  void write(int process, std::string message);
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
