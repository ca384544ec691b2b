// Signals that ask a training program to save and end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

struct StopRequestOptions {
  /// Signals that are taken as the wish to stop. SIGKILL and SIGSTOP cannot be.
  std::vector<int> signals;
  /// Time that the process may run after the first signal; then `expired` is called, on a thread of this
  /// class. 0: unlimited.
  std::chrono::milliseconds grace{0};
  /// Begins the lines that this class prints on stderr.
  std::string program;
  /// Null: says on stderr that the grace is over, and ends the process with exit code 1.
  std::function<void()> expired = {};
};

/// Takes over some signals for its lifetime, for a program that asks for it; the library itself never does.
/// The first signal is only remembered: who trains reads it between steps (StopAgreement), saves, and ends. A
/// second one ends the process at once, with exit code 128 + signal and nothing saved. Two within 250 ms
/// count as one: timeout(1), launchers and terminals tend to send a signal to a process and to its group.
///
/// A signal that the process was started to ignore (by nohup, or as a shell's background job) stays ignored.
///
/// What the handler does is async-signal-safe: it sets lock-free atomics and writes to an eventfd, or ends
/// the process. A handler can reach process-wide memory alone, so that is where the atomics lie; they begin
/// anew with each StopRequest, of which a process has one at a time. All ranks of a process see the same
/// signal. Processes of a job have one each, and may be signalled at different times or not all:
/// StopAgreement brings them together.
class StopRequest {
 public:
  /// @throws InvalidArgument when there is one already, when no signal is named, for a signal that cannot be
  /// taken; IoError when the system gives no eventfd.
  explicit StopRequest(StopRequestOptions options);
  /// Restores the former handlers of the signals, and ends the grace.
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// As the destructor, now: for when training has ended and what follows need not be stopped with care. Any thread, any
  /// number of times. What signal() says stays.
  void release() noexcept;

  /// The first signal that came; 0: none. Any thread, lock-free.
  int signal() const noexcept;
  /// Seconds since it came; 0: none came. Any thread.
  double seconds_since_signal() const noexcept;
  /// "SIGTERM", "SIGINT", ..., or "signal 77".
  static std::string name_of(int signal);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
