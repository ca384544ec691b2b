#include "progress.h"

#include <algorithm>

#include <fmt/format.h>
#include <unistd.h>

#include "text.h"

namespace sherd::tools {

using std::chrono::milliseconds;

Progress::Mode Progress::mode_of_stderr(bool quiet) { return ProgressLine::mode_of(STDERR_FILENO, quiet); }

Progress::Progress(std::ostream& out, Mode mode, std::string what, int64_t total,
                   std::function<Clock::time_point()> now)
    : line_(out, mode),
      what_(std::move(what)),
      total_(total),
      now_(std::move(now)),
      start_(now_()),
      last_(start_) {}

Progress::~Progress() { line_.clear(); }

void Progress::at(int64_t done) {
  done_ = done;
  if (line_.mode() == Mode::off || total_ <= 0) return;
  const auto now = now_();
  if (line_.mode() == Mode::bar) {
    if (now - last_ < milliseconds(100)) return;
    line_.draw(describe(), done_, total_, ProgressLine::columns_of(STDERR_FILENO));
  } else {
    const bool much_more = (done_ - shown_) * 10 >= total_ && now - last_ >= milliseconds(1000);
    if (!much_more && now - last_ < milliseconds(5000)) return;
    line_.line(describe());
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

}  // namespace sherd::tools
