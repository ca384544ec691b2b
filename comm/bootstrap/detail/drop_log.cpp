#include <sherd/comm/bootstrap/detail/drop_log.h>

#include <fmt/format.h>

#include <sherd/base/program.h>

namespace sherd {

void say(const StoreLog& log, const std::string& line) noexcept {
  try {
    log ? log(line) : print_error("sherd", line);
  } catch (...) {  // the store continues without its log lines
  }
}

void DropLog::dropped(Kind kind, const std::string& host, const std::string& port, const std::string& why,
                      Time now) {
  look(now);
  if (strangers_.lines + refused_ranks_.lines == 0) begin_ = now;
  Counts& counts = kind == Kind::stranger ? strangers_ : refused_ranks_;
  if (counts.lines < kLines) {
    ++counts.lines;
    say(log_, fmt::format("store: dropped a connection from {} port {}: {}", host, port, why));
  } else if (counts.held.contains(host) || counts.held.size() < kHosts) {
    ++counts.held[host];
  } else {
    ++counts.held_elsewhere;
  }
}

void DropLog::look(Time now) {
  if (strangers_.lines + refused_ranks_.lines > 0 && now >= begin_ + kWindow) flush();
}

void DropLog::flush() {
  const auto report = [&](Counts& counts, const char* who) {
    const auto line = [&](int64_t count, const std::string& where) {
      say(log_, fmt::format("store: dropped {} more connection{} from {}{}", count, count > 1 ? "s" : "",
                            where, who));
    };
    for (const auto& [host, count] : counts.held) line(count, host);
    if (counts.held_elsewhere > 0) line(counts.held_elsewhere, "other addresses");
    counts = {};
  };
  report(strangers_, "");
  report(refused_ranks_, " that said which rank they are");
}

}  // namespace sherd
