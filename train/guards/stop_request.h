// Signals that ask a training program to save and end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// Two signals within this time count as one: timeout(1), launchers, batch systems and terminals may send a
/// signal to a process and to its group.
constexpr std::chrono::milliseconds kSameSignal{250};

/// Returns SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2: what terminals and batch systems send ahead of
/// SIGKILL.
std::vector<int> stop_signals();
bool is_stop_signal(int signal);

struct StopRequestOptions {
  /// Signals that request a stop; not SIGKILL or SIGSTOP.
  std::vector<int> signals;
  /// Time that the process may run after the first signal; then `expired` is called, on a thread of this
  /// class. 0: unlimited.
  std::chrono::milliseconds grace{0};
  /// Whether a second signal ends the process at once. False under a supervisor, which ends it itself: the
  /// stop that it passes on and the same stop from the batch system may be seconds apart.
  bool second_ends = true;
  /// Prefix of the lines that this class prints on stderr.
  std::string program;
  /// Null: prints on stderr that the grace is over, and ends the process with exit code 1.
  std::function<void()> expired = {};
};

/// Handles some signals during its lifetime, for a program that asks for it; the library itself never does.
/// The first signal is only recorded: the training loop reads it between steps (StopAgreement), saves, and
/// ends. A second one, after kSameSignal, ends the process at once, with exit code 128 + signal and nothing
/// saved.
///
/// A signal that the process was started to ignore (by nohup, or as a shell's background job) stays ignored.
///
/// The handler is async-signal-safe: it sets lock-free atomics and writes to an eventfd, or ends the process.
/// A handler can reach process-wide memory alone, so the atomics are globals; each StopRequest resets them,
/// and a process has one at a time. All ranks of a process see the same signal. Processes of a job have one
/// each, and may receive signals at different times or not at all: StopAgreement makes them agree.
class [[nodiscard]] StopRequest {
 public:
  /// @throws InvalidArgument when another one exists, without a signal, for a signal that cannot be handled;
  /// IoError when the system gives no eventfd.
  explicit StopRequest(StopRequestOptions options);
  /// Restores the former handlers of the signals, and ends the grace.
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Does the destructor's work now, when training has ended and later work may be interrupted. Any thread,
  /// any number of times. signal() keeps its value.
  void release() noexcept;
  /// The same, but the signals are ignored from then on: for a process that has saved and ends, which a
  /// repeated signal must not kill. Without effect after release().
  void release_ignored() noexcept;

  /// Returns the first signal received; 0: none. Any thread, lock-free.
  int signal() const noexcept;
  /// Returns the seconds since then; 0 without a signal. Any thread.
  double seconds_since_signal() const noexcept;
  /// "SIGTERM", "SIGINT", ..., or "signal 77".
  static std::string name_of(int signal);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
