#include "run_report.h"

#include <cstring>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace sherd::tools {
namespace {

// A record separator, which no program prints by accident, then words.
constexpr std::string_view kMark = "\x1esherd-run-rank ";
constexpr size_t kLongest = 400;
constexpr std::string_view kKinds[] = {"started", "ended", "killed", "stopped", "goes_on"};

bool decode(const std::string& line, RankReport& report) {
  std::istringstream words(line.substr(kMark.size()));
  std::string kind;
  if (!(words >> kind >> report.rank >> report.host >> report.process >> report.value)) return false;
  for (size_t k = 0; k < std::size(kKinds); ++k) {
    if (kind != kKinds[k]) continue;
    report.kind = static_cast<RankReport::Kind>(k);
    return true;
  }
  return false;
}

}  // namespace

std::string RankReport::describe() const {
  const std::string who = rank < 0 ? fmt::format("process {} on {}", process, host)
                                   : fmt::format("rank {} (process {} on {})", rank, process, host);
  const auto signal = [&] { return fmt::format("signal {} ({})", value, ::strsignal(value)); };
  switch (kind) {
    case Kind::started:
      return who + " has begun";
    case Kind::ended:
      return fmt::format("{} ended with exit code {}", who, value);
    case Kind::killed:
      return fmt::format("{} was killed by {}", who, signal());
    case Kind::stopped:
      return fmt::format("{} was stopped by {}", who, signal());
    case Kind::goes_on:
      return who + " continues";
  }
  return who;
}

std::string encode_report(const RankReport& r) {
  return fmt::format("{}{} {} {} {} {}\n", kMark, kKinds[static_cast<size_t>(r.kind)], r.rank,
                     r.host.empty() ? "?" : r.host, r.process, r.value);
}

void ReportReader::add(std::string_view bytes) {
  std::string all = std::exchange(begun_, {}) + std::string(bytes);
  std::string_view left = all;
  while (!left.empty()) {
    const size_t mark = left.find(kMark[0]);
    if (mark > 0) text_(left.substr(0, mark));
    if (mark == left.npos) return;
    left.remove_prefix(mark);
    const size_t end = left.find('\n');
    const bool is_one = left.starts_with(kMark) || (left.size() < kMark.size() && kMark.starts_with(left));
    if (is_one && end == left.npos && left.size() < kLongest) {
      begun_ = left;  // the rest comes with what is read next
      return;
    }
    RankReport report;
    if (is_one && end != left.npos && decode(std::string(left.substr(0, end)), report)) {
      report_(report);
      left.remove_prefix(end + 1);
    } else {
      text_(left.substr(0, 1));
      left.remove_prefix(1);
    }
  }
}

}  // namespace sherd::tools
