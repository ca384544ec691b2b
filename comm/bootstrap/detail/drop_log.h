// Rate-limited log of connections that the job's store dropped. Private to comm/.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// Passes the line to `log`; without one prints "sherd: LINE" to stderr. Exceptions of `log` are dropped.
void say(const StoreLog& log, const std::string& line) noexcept;

/// Logs a line for each dropped connection, up to kLines of a kind in kWindow. Connections beyond that get
/// one line per address, with their number, at the end of the window. Used by one thread.
class DropLog {
 public:
  /// Counted apart, so that many strangers do not hide a rank whose secret is wrong.
  enum class Kind {
    stranger,     // did not name its rank, or sent something else
    refused_rank  // named a rank that the job does not accept
  };
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kLines = 16;
  static constexpr size_t kHosts = 8;  // addresses with counts of their own
  static constexpr auto kWindow = std::chrono::seconds(10);

  explicit DropLog(StoreLog log) : log_(std::move(log)) {}
  /// Reports the lines held back.
  ~DropLog() { flush(); }
  DropLog(const DropLog&) = delete;

  void dropped(Kind kind, const std::string& host, const std::string& port, const std::string& why, Time now);
  /// Ends a window that is over. Call it regularly.
  void look(Time now);

 private:
  /// Lines and counts of one kind in the window.
  struct Counts {
    int lines = 0;
    std::map<std::string, int64_t> held = {};
    int64_t held_elsewhere = 0;
  };
  void flush();

  const StoreLog log_;
  Time begin_{};
  Counts strangers_, refused_ranks_;
};

}  // namespace sherd
