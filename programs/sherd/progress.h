// Progress of an operation that is counted in bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include <sherd/train/report/progress_line.h>

namespace sherd::tools {

/// A one-line bar, redrawn on a terminal and cleared at the end; plain lines elsewhere (about every 5 s, or
/// 10 % where that takes a second or more, so that short operations print nothing); or nothing.
class Progress {
 public:
  using Mode = ProgressLine::Mode;
  using Clock = std::chrono::steady_clock;

  /// Makes it for stderr, a terminal or not.
  static Mode mode_of_stderr(bool quiet);

  /// @param what beginning of the line, e.g. "verify step_00000100". `out` outlives this.
  Progress(std::ostream& out, Mode mode, std::string what, int64_t total,
           std::function<Clock::time_point()> now = Clock::now);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports the number of bytes done.
  void at(int64_t done);
  void add(int64_t bytes) { at(done_ + bytes); }
  /// Sets the total, where it is known later than the constructor.
  void set_total(int64_t total) { total_ = total; }

 private:
  std::string describe() const;

  ProgressLine line_;
  std::string what_;
  int64_t total_, done_ = 0, shown_ = 0;
  std::function<Clock::time_point()> now_;
  Clock::time_point start_, last_;
};

}  // namespace sherd::tools
