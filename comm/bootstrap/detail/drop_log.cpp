#include <sherd/comm/bootstrap/detail/drop_log.h>

#include <fmt/format.h>

#include <sherd/kernels/device/program.h>

namespace sherd {

void say(const StoreLog& log, const std::string& line) noexcept {
  try {
    log ? log(line) : print_error("sherd", line);
  } catch (...) {  // the store goes on without its lines
  }
}

void DropLog::dropped(const std::string& host, const std::string& port, const std::string& why, Time now) {
  look(now);
  if (lines_ == 0) begin_ = now;
  if (lines_ < kLines) {
    ++lines_;
    say(log_, fmt::format("store: dropped a connection from {} port {}: {}", host, port, why));
  } else if (held_.contains(host) || held_.size() < kHosts) {
    ++held_[host];
  } else {
    ++held_elsewhere_;
  }
}

void DropLog::look(Time now) {
  if (lines_ > 0 && now >= begin_ + kWindow) flush();
}

void DropLog::flush() {
  const auto tell = [&](int64_t count, const std::string& where) {
    say(log_, fmt::format("store: dropped {} more connection{} from {}", count, count > 1 ? "s" : "", where));
  };
  for (const auto& [host, count] : held_) tell(count, host);
  if (held_elsewhere_ > 0) tell(held_elsewhere_, "other addresses");
  held_.clear();
  held_elsewhere_ = 0;
  lines_ = 0;
}

}  // namespace sherd
