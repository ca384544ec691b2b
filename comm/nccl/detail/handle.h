// One NCCL communicator with its pending operations. Private to comm/nccl.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/nccl/detail/session.h>
#include <sherd/comm/nccl/detail/watched.h>
#include <sherd/comm/nccl/detail/windows.h>

namespace sherd::nccl {

/// One NCCL communicator. NCCL takes one call at a time per communicator, from any thread with the device
/// current; polls and aborts are exceptions.
class Handle final : public Watched {
 public:
  /// `name` and `world_ranks` of its group, the same on all its ranks; `name` is the key of its progress.
  Handle(Session& session, std::string name, std::vector<int> world_ranks)
      : session_(session), name_(std::move(name)), world_ranks_(std::move(world_ranks)) {}

  using Call = std::function<ncclResult_t(ncclComm_t)>;

  /// Makes the communicator and waits until it is ready.
  void init(int rank, int size, const ncclUniqueId& id, const std::string& where, const Deadline& deadline);
  /// Makes it from a parent's ranks, whose operations must all be done.
  void init_split(Handle& parent, int color, int key, const std::string& where, const Deadline& deadline);
  /// Issues work and waits until NCCL has issued it.
  /// @throws CommError when NCCL reports an error or the deadline passes; PeerFailure when the launch failed.
  void run(const std::string& where, const Deadline& deadline, const Call& call);
  /// run() of a collective or a message, with its memory counted where it may be the first of its algorithm: at the first
  /// call, and while the device issues in order, in the first step of a model. @throws also OutOfMemory.
  void run_counted(const std::string& where, const Deadline& deadline, const Call& call);
  /// Registers memory that is not registered yet, before an operation on it is issued.
  void register_memory(const void* data, int64_t bytes, const std::string& where, const Deadline& deadline);
  void forget(const void* block, int64_t bytes) noexcept override;

  /// Makes the block a symmetric window of this communicator. All its ranks call, in one order among its
  /// windows and its operations, with blocks of one size. False when NCCL has made none, on all of them
  /// alike.
  bool open_window(std::shared_ptr<const WindowBlock> block, const std::string& where,
                   const Deadline& deadline);
  /// Returns the number of windows requested, this one included: the same on all ranks.
  int64_t next_window() { return ++windows_asked_; }
  /// Closes the window, in one order on all ranks, when no operation uses it. After a failure of the launch,
  /// and where NCCL does not close it, the block is kept until the communicator has ended.
  void close_window(const WindowBlock& block) noexcept;

  /// Notes a message to or from a rank of the group; returns whether it is the first, for which NCCL takes memory. On the thread
  /// that issues.
  bool connects(int peer) { return connected_.insert(peer).second; }

  /// Returns device memory for what the running operation issues, grow-only; not the stream's own scratch
  /// memory, which kernels that read this may use.
  char* scratch(const ExecutionContext& context, int64_t bytes);
  /// Returns device memory for a barrier; `fresh` when nothing has been written there yet.
  int32_t* word(bool& fresh);

  /// Counts the next call: a call of all ranks of the group, or a message to or from world rank `peer`.
  void begin(const std::string& where);
  void begin_message(int peer, bool sends);
  /// The next call is none of those.
  void begin_uncounted() { begin(Awaited{}); }

  /// Counts an operation as queued but not yet issued, until the returned object is destroyed.
  std::shared_ptr<void> queued();
  bool has_queued() const override { return queued_.load() > 0; }
  bool in_flight() override;
  /// Registers an issued operation; it is late when `done` does not complete before the deadline.
  void under_way(const std::string& where, const Deadline& deadline, std::shared_ptr<NativeEvent> done);
  /// Returns whether nothing is queued or in flight.
  bool idle();

  bool alive() override;
  Trouble poll() override;
  void abort() noexcept override;
  void close(bool failed) noexcept override;

 private:
  /// Key and number under which the peers count the current call or message. Number 0: they do not count it.
  struct Awaited {
    std::vector<int> ranks;
    std::string key;
    int64_t number = 0;
    bool message = false;

    /// Returns the call's number among those of all ranks of the group; 0: not one of them.
    int64_t collective() const { return message ? 0 : number; }
  };
  struct Flight {
    std::string where;
    Deadline deadline;
    std::shared_ptr<NativeEvent> done;
    Awaited awaited;
  };
  void begin(Awaited awaited);
  Awaited awaited();
  std::vector<int> gone(const Awaited& awaited) const;
  /// Returns the message for a call that is not done in time, with the ranks that it waits for.
  std::string late(const std::string& where, std::chrono::milliseconds timeout, const Awaited& awaited);
  struct Registration {
    const char *begin, *end;
    void* handle;
  };
  struct Opened {
    std::shared_ptr<const WindowBlock> block;
    Window window;
  };
  /// Takes the result of a completed split as the communicator. With mutex_ held.
  bool take_split() noexcept;
  /// Counts the memory that NCCL takes during `call`, which takes mutex_ itself.
  void count_memory(const std::function<void()>& call);
  std::string text_of(ncclResult_t result, ncclComm_t comm) const;
  /// Waits until the communicator is done with the call that returned `result`. Unlocks and relocks mutex_
  /// meanwhile.
  void settle(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& where,
              const Deadline& deadline);

  Session& session_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  std::mutex driver_;           // from a call of NCCL until the communicator is done with it; before mutex_
  std::mutex mutex_;            // calls of NCCL
  ncclComm_t comm_ = nullptr;   // null before init() and after the end
  ncclComm_t split_ = nullptr;  // set by a thread of NCCL when a split is complete
  std::vector<std::shared_ptr<void>> counted_;  // memory that NCCL has taken for it; under mutex_
  std::atomic<bool> used_{false};               // by a collective or a message
  std::set<int> connected_;                     // ranks of the group
  std::vector<Registration> registered_;
  int64_t windows_asked_ = 0;      // used by the rank's thread
  std::list<Opened> windows_;      // a list: NCCL writes to an entry while it makes the window
  std::shared_ptr<char> scratch_;  // used by the one stream that drives the communicator
  int64_t scratch_bytes_ = 0;
  std::shared_ptr<int32_t> word_;
  std::atomic<int64_t> queued_{0};
  std::mutex flights_mutex_;
  Awaited awaited_;  // of the operation being issued; under flights_mutex_, as the next
  std::vector<Flight> flights_;
};

/// Adds a Handle without a communicator. The session owns it, and its watchdog polls it from now on.
Handle& add_handle(Session& session, const std::string& name, const std::vector<int>& world_ranks);

}  // namespace sherd::nccl
