#include <sherd/train/metrics.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

/// Not left to a JSON library: they print the fewest digits that restore the number, which may be fewer
/// than 17.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:#.17g}", value) : "null"; }

constexpr size_t kMostWaiting = size_t{16} << 20;

[[noreturn]] void fail(const std::string& path) {
  throw IoError(
      fmt::format("cannot write the metrics '{}': {}", path, std::system_category().message(errno)));
}

// A run that was killed may have left a part of one.
bool ends_in_the_middle_of_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

std::string format_metrics(const StepResult& s) {
  std::vector<std::string> comm;
  for (const auto& [name, count] : s.comm) {
    comm.push_back(fmt::format(R"("{}": {{"calls": {}, "bytes": {}}})", name, count.calls, count.bytes));
  }
  return fmt::format(
      R"({{"step": {}, "loss": {}, {}"grad_norm": {}, "num_zeros": {}, "skipped": {}, "skipped_steps": {}, )"
      R"("lr": {}, "tokens_per_s": {}, "step_ms": {}, "optim_ms": {}, "comm": {{{}}}, "peak_bytes": {}, )"
      R"("host_syncs": {}{}}})",
      s.step, number(s.loss), s.eval_loss ? fmt::format(R"("eval_loss": {}, )", number(*s.eval_loss)) : "",
      number(s.grad_norm), s.num_zeros, s.skipped, s.skipped_steps, number(s.lr), number(s.tokens_per_s),
      number(s.step_ms), number(s.optim_ms), fmt::join(comm, ", "), s.peak_bytes, s.host_syncs,
      s.save_ms ? fmt::format(R"(, "save_ms": {})", number(*s.save_ms)) : "");
}

void read_losses(const std::string& path, int64_t steps, std::vector<double>& losses,
                 std::vector<std::pair<int64_t, double>>& held_out) {
  losses.assign(static_cast<size_t>(steps), std::numeric_limits<double>::quiet_NaN());
  std::map<int64_t, double> evaluated;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);  // the last line may be torn
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const auto step = json["step"].get<int64_t>();
    if (step < 1 || step > steps) continue;
    if (json.contains("loss") && json["loss"].is_number())
      losses[static_cast<size_t>(step - 1)] = json["loss"].get<double>();
    if (json.contains("eval_loss") && json["eval_loss"].is_number())
      evaluated[step] = json["eval_loss"].get<double>();
  }
  held_out.insert(held_out.end(), evaluated.begin(), evaluated.end());
}

MetricsWriter::MetricsWriter(const std::string& path, const std::string& config, bool go_on)
    : path_(path), file_(std::fopen(path.c_str(), "ae")) {
  if (!file_) fail(path_);
  struct stat status;
  if (::fstat(::fileno(file_.get()), &status) == -1) fail(path_);
  if (S_ISREG(status.st_mode)) {
    if (::flock(::fileno(file_.get()), LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK)
      throw IoError(fmt::format(
          "cannot write the metrics '{}': another run writes them there; stop that run, or name another file",
          path_));
    // Only now: it may have been another run's.
    if (!go_on && ::ftruncate(::fileno(file_.get()), 0) == -1) fail(path_);
  }
  if (ends_in_the_middle_of_a_line(path)) waiting_ = "\n";
  waiting_ += fmt::format("{{\"config\":{}}}\n", config);
  if (!write_waiting()) fail(path_);
}

void MetricsWriter::write(const StepResult& step) {
  const std::string line = format_metrics(step) + '\n';
  if (waiting_.size() + line.size() > kMostWaiting && !write_waiting()) {
    ++lines_lost_;
    return;
  }
  waiting_ += line;
  ++lines_waiting_;
  flush();
}

void MetricsWriter::flush() {
  if (!waiting_.empty()) write_waiting();
}

// All of it, or as if nothing had been tried.
bool MetricsWriter::write_waiting() {
  const int file = ::fileno(file_.get());
  struct stat before;
  const bool regular = ::fstat(file, &before) == 0 && S_ISREG(before.st_mode);
  size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t n = ::write(file, waiting_.data() + written, waiting_.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error_ = errno;
      if (!regular || ::ftruncate(file, before.st_size) == -1) waiting_.erase(0, written);
      errno = error_;
      return false;
    }
  }
  waiting_.clear();
  lines_waiting_ = 0;
  return true;
}

std::string MetricsWriter::failure() const {
  const int64_t missing = lines_waiting_ + lines_lost_;
  if (missing == 0) return "";
  return fmt::format("cannot write the metrics '{}': {}; {} line{} missing in it", path_,
                     std::system_category().message(error_), missing, missing == 1 ? " is" : "s are");
}

}  // namespace sherd
