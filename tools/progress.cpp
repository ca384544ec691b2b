#include "progress.h"

#include <algorithm>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

namespace sherd::tools {
namespace {

using std::chrono::milliseconds;

int columns_of_stderr() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Mode Progress::mode_of_stderr(bool quiet) {
  if (quiet) return Mode::off;
  return ::isatty(STDERR_FILENO) == 0 ? Mode::lines : Mode::bar;
}

Progress::Progress(std::ostream& out, Mode mode, std::string what, int64_t total,
                   std::function<Clock::time_point()> now)
    : out_(out),
      mode_(mode),
      what_(std::move(what)),
      total_(total),
      now_(std::move(now)),
      start_(now_()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
}

void Progress::at(int64_t done) {
  done_ = done;
  if (mode_ == Mode::off || total_ <= 0) return;
  const auto now = now_();
  if (mode_ == Mode::bar) {
    if (now - last_ < milliseconds(100)) return;
    out_ << '\r' << bar(columns_of_stderr()) << "\x1b[K" << std::flush;
    drawn_ = true;
  } else {
    const bool much_more = (done_ - shown_) * 10 >= total_ && now - last_ >= milliseconds(1000);
    if (!much_more && now - last_ < milliseconds(5000)) return;
    out_ << describe() << '\n' << std::flush;
  }
  shown_ = done_;
  last_ = now;
}

std::string Progress::describe() const {
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now_() - start_).count());
  const double rate = static_cast<double>(done_) / seconds;
  const int64_t left = done_ > 0 ? static_cast<int64_t>(static_cast<double>(total_ - done_) / rate) : 0;
  return fmt::format("{}  {} of {}  {:.0f} %  {}/s  left {}:{:02}", what_, bytes_text(done_),
                     bytes_text(total_), 100.0 * static_cast<double>(done_) / static_cast<double>(total_),
                     bytes_text(rate), left / 60, left % 60);
}

std::string Progress::bar(int columns) const {
  const std::string text = describe();
  const auto room = columns - static_cast<int64_t>(text.size()) - 4;  // " [", "]", cursor
  if (room < 8) return text.substr(0, static_cast<size_t>(std::max(columns - 1, 0)));
  const int64_t cells = std::min<int64_t>(room, 40);
  const auto share = static_cast<double>(done_) / static_cast<double>(total_);
  const auto full = std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(cells) * share), 0, cells);
  return fmt::format("{} [{:=<{}}{:{}}]", text, "", full, "", cells - full);
}

}  // namespace sherd::tools
