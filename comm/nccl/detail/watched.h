// Interface of a communicator to the watchdog, so that a session is independent of communicator types.
// Private to comm/nccl.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include <sherd/comm/nccl/detail/roll_call.h>

namespace sherd::nccl {

/// Why a launch must fail.
struct Trouble {
  enum Kind {
    none,
    late,     // the text is the call's, of which Watched::late() makes a message
    left,     // a rank that it waits for has left
    network,  // perhaps a peer's end, of which the store tells more
    other
  };
  Kind kind = none;
  std::string text = {};
  std::chrono::milliseconds timeout{0};
  int64_t calls = 0;
  int failed_rank = -1;
};

/// Thread-safe. Lives as long as its session.
class Watched {
 public:
  Watched() = default;
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  /// Of its group, the same on all its ranks.
  virtual const std::string& name() const = 0;
  /// Of the calls, not of the messages.
  virtual Progress progress() = 0;
  /// How many have begun, for the other ranks when this one has left: calls under name(), messages under
  /// name() > receiver and name() < sender.
  virtual std::map<std::string, int64_t> counts() = 0;
  /// Whether work is queued but not yet issued.
  virtual bool has_queued() const = 0;
  /// What has gone wrong since, if anything has. Waits for nothing.
  virtual Trouble poll() = 0;
  /// The message of a call that is not done in time. Asks the other ranks how far they have come, unless
  /// `calls` (the call's number among those of progress()) is 0.
  virtual std::string late(const std::string& where, std::chrono::milliseconds timeout, int64_t calls) = 0;
  /// Undoes the registrations that overlap the block; with the device current, and when no work uses it.
  virtual void forget(const void* block, int64_t bytes) noexcept = 0;
  virtual bool alive() = 0;
  /// Ends the communicator and its work at once. @pre the launch has failed
  virtual void abort() noexcept = 0;
  /// Ends it when all work is done, at once when the launch `failed`.
  virtual void close(bool failed) noexcept = 0;
};

}  // namespace sherd::nccl
