// Rate-limited log of connections that the job's store dropped. Private to comm/.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// Gives the line to `log`; to stderr as "sherd: LINE" when that is empty. What `log` throws is lost.
void say(const StoreLog& log, const std::string& line) noexcept;

/// A line for each dropped connection, up to kLines of a kind in kWindow; for those past that one per
/// address, with their number, when the window is over. Of one thread.
class DropLog {
 public:
  /// Counted apart, so that no number of strangers hides a rank whose secret is wrong.
  enum class Kind {
    stranger,     // who did not say what rank it is, or sent something else
    refused_rank  // who said it, and is none
  };
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kLines = 16;
  static constexpr size_t kHosts = 8;  // addresses counted apart
  static constexpr auto kWindow = std::chrono::seconds(10);

  explicit DropLog(StoreLog log) : log_(std::move(log)) {}
  /// Reports the lines held back.
  ~DropLog() { flush(); }
  DropLog(const DropLog&) = delete;

  void dropped(Kind kind, const std::string& host, const std::string& port, const std::string& why, Time now);
  /// To be called now and then.
  void look(Time now);

 private:
  /// What the window has had of one kind.
  struct Told {
    int lines = 0;
    std::map<std::string, int64_t> held = {};
    int64_t held_elsewhere = 0;
  };
  void flush();

  const StoreLog log_;
  Time begin_{};
  Told strangers_, refused_ranks_;
};

}  // namespace sherd
