// Reports of each rank's keeper to the supervisor of `sherd run`: lines among those that the ranks print to
// stderr, which a launcher collects from all hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace sherd::tools {

struct RankReport {
  enum class Kind {
    started,
    ended,    // with exit code `value`
    killed,   // by signal `value`
    stopped,  // by signal `value`; it may continue
    goes_on,
  };
  Kind kind = Kind::started;
  int rank = -1;  // as the launcher numbers them; -1: it does not
  std::string host;
  int64_t process = 0;
  int value = 0;

  /// Ended with exit code 0.
  bool well() const { return kind == Kind::ended && value == 0; }
  bool over() const { return kind == Kind::ended || kind == Kind::killed; }
  /// Whether both are of one rank; where the launcher does not number them, of one process.
  bool same_rank(const RankReport& other) const {
    return rank >= 0 || other.rank >= 0 ? rank == other.rank : process == other.process && host == other.host;
  }
  /// "rank 2 (process 4711 on node1) was killed by signal 9 (Killed)".
  std::string describe() const;
};

/// A line with its line feed; short enough for a pipe to take it in one piece.
std::string encode_report(const RankReport& report);

/// Takes reports out of what is read from stderr, and hands on everything else, unchanged and at once.
class ReportReader {
 public:
  ReportReader(std::function<void(const RankReport&)> report, std::function<void(std::string_view)> text)
      : report_(std::move(report)), text_(std::move(text)) {}
  void add(std::string_view bytes);

 private:
  std::function<void(const RankReport&)> report_;
  std::function<void(std::string_view)> text_;
  std::string begun_;  // of a report
};

}  // namespace sherd::tools
