// Interface of a communicator to the watchdog, so that a session is independent of communicator types.
// Private to comm/nccl.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include <sherd/comm/nccl/detail/roll_call.h>

namespace sherd::nccl {

/// Reason for which a launch must fail.
struct Trouble {
  enum Kind {
    none,
    late,     // the text names the call; Watched::late() makes the message
    left,     // a rank that it waits for has left
    network,  // perhaps the end of a peer, for which the store has the cause
    other
  };
  Kind kind = none;
  std::string text = {};
  std::chrono::milliseconds timeout{0};
  int64_t calls = 0;
  int failed_rank = -1;
};

/// A communicator as the watchdog polls it. Thread-safe. Exists as long as its session.
class Watched {
 public:
  Watched() = default;
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  /// Returns the name of its group, the same on all its ranks.
  virtual const std::string& name() const = 0;
  /// Returns the progress in calls, without messages.
  virtual Progress progress() = 0;
  /// Returns the number of operations begun, for the other ranks when this one has left: calls under name(),
  /// messages under name() > receiver and name() < sender.
  virtual std::map<std::string, int64_t> counts() = 0;
  /// Returns whether operations are queued but not yet issued.
  virtual bool has_queued() const = 0;
  /// Returns the first trouble since the last poll, if any. Does not block.
  virtual Trouble poll() = 0;
  /// Returns the message for a call that is not done in time. Asks the other ranks for their progress, unless
  /// `calls` (the call's number among those of progress()) is 0.
  virtual std::string late(const std::string& where, std::chrono::milliseconds timeout, int64_t calls) = 0;
  /// Removes the registrations that overlap the block; with the device current, when no operation uses it.
  virtual void forget(const void* block, int64_t bytes) noexcept = 0;
  virtual bool alive() = 0;
  /// Ends the communicator and its operations at once. @pre the launch has failed
  virtual void abort() noexcept = 0;
  /// Ends it when all operations are done; at once when the launch `failed`.
  virtual void close(bool failed) noexcept = 0;
};

}  // namespace sherd::nccl
