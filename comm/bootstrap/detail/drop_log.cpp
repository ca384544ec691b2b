#include <sherd/comm/bootstrap/detail/drop_log.h>

#include <fmt/format.h>

#include <sherd/kernels/device/program.h>

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
  Told& told = kind == Kind::stranger ? strangers_ : refused_ranks_;
  if (told.lines < kLines) {
    ++told.lines;
    say(log_, fmt::format("store: dropped a connection from {} port {}: {}", host, port, why));
  } else if (told.held.contains(host) || told.held.size() < kHosts) {
    ++told.held[host];
  } else {
    ++told.held_elsewhere;
  }
}

void DropLog::look(Time now) {
  if (strangers_.lines + refused_ranks_.lines > 0 && now >= begin_ + kWindow) flush();
}

void DropLog::flush() {
  const auto tell = [&](Told& told, const char* who) {
    const auto line = [&](int64_t count, const std::string& where) {
      say(log_, fmt::format("store: dropped {} more connection{} from {}{}", count, count > 1 ? "s" : "",
                            where, who));
    };
    for (const auto& [host, count] : told.held) line(count, host);
    if (told.held_elsewhere > 0) line(told.held_elsewhere, "other addresses");
    told = {};
  };
  tell(strangers_, "");
  tell(refused_ranks_, " that said which rank they are");
}

}  // namespace sherd
