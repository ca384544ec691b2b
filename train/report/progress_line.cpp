#include <sherd/train/report/progress_line.h>

#include <algorithm>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sherd {
namespace {

std::string with_bar(const std::string& text, int64_t done, int64_t total, int columns) {
  const auto room = columns - static_cast<int64_t>(text.size()) - 4;  // " [", "]", cursor
  if (room < 8) return text.substr(0, static_cast<size_t>(std::max(columns - 1, 0)));
  const int64_t cells = std::min<int64_t>(room, 40);
  const int64_t full = std::clamp<int64_t>(cells * done / total, 0, cells);
  return fmt::format("{} [{:=<{}}{:{}}]", text, "", full, "", cells - full);
}

}  // namespace

ProgressLine::Mode ProgressLine::mode_of(int descriptor, bool quiet) {
  if (quiet) return Mode::off;
  return ::isatty(descriptor) == 0 ? Mode::lines : Mode::bar;
}

int ProgressLine::columns_of(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void ProgressLine::draw(const std::string& text, int64_t done, int64_t total, int columns) {
  out_ << '\r' << with_bar(text, done, total, columns) << "\x1b[K" << std::flush;
  drawn_ = true;
}

void ProgressLine::line(const std::string& text) {
  if (mode_ == Mode::off) return;
  if (drawn_) out_ << "\r\x1b[K";
  drawn_ = false;
  out_ << text << '\n' << std::flush;
}

void ProgressLine::clear() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void ProgressLine::finish() {
  if (drawn_) out_ << '\n' << std::flush;
  drawn_ = false;
}

}  // namespace sherd
