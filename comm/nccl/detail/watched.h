// Interface of a communicator to the watchdog, so that a session is independent of communicator types.
// Private to comm/nccl.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::nccl {

/// Reason for which a launch must fail; none without a text.
struct Trouble {
  std::string text = {};
  int failed_rank = -1;
  bool of_network = false;  // perhaps the end of a peer, for which the store has the cause
};

/// A communicator as the watchdog polls it. Thread-safe. Exists as long as its session.
class Watched {
 public:
  Watched() = default;
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  /// Returns whether operations are queued but not yet issued.
  virtual bool has_queued() const = 0;
  /// Returns whether operations are issued but not yet done.
  virtual bool in_flight() = 0;
  /// Returns the first trouble since the last poll, if any. Waits only to find the ranks that a late call waits for.
  virtual Trouble poll() = 0;
  /// Removes the registrations that overlap the block; with the device current, when no operation uses it.
  virtual void forget(const void* block, int64_t bytes) noexcept = 0;
  virtual bool alive() = 0;
  /// Ends the communicator and its operations at once. @pre the launch has failed
  virtual void abort() noexcept = 0;
  /// Ends it when all operations are done; at once when the launch `failed`.
  virtual void close(bool failed) noexcept = 0;
};

}  // namespace sherd::nccl
