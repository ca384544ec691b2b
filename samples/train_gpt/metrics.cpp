#include "metrics.h"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/kernels/error.h>

namespace train_gpt {
namespace {

/// Not left to a JSON library: they print the fewest digits that restore the number, which may be fewer
/// than 17.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:#.17g}", value) : "null"; }

[[noreturn]] void fail(const std::string& path) {
  throw sherd::IoError(
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
      R"({{"step": {}, "loss": {}, {}"grad_norm": {}, "num_zeros": {}, "lr": {}, "tokens_per_s": {}, )"
      R"("step_ms": {}, "optim_ms": {}, "comm": {{{}}}, "peak_bytes": {}, "host_syncs": {}{}}})",
      s.step, number(s.loss), s.eval_loss ? fmt::format(R"("eval_loss": {}, )", number(*s.eval_loss)) : "",
      number(s.grad_norm), s.num_zeros, number(s.lr), number(s.tokens_per_s), number(s.step_ms),
      number(s.optim_ms), fmt::join(comm, ", "), s.peak_bytes, s.host_syncs,
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

MetricsWriter::MetricsWriter(const std::string& path, const TrainConfig& config)
    : path_(path), file_(std::fopen(path.c_str(), config.resume.empty() ? "we" : "ae")) {
  if (!file_) fail(path_);
  if (ends_in_the_middle_of_a_line(path)) write_line("");
  const nlohmann::ordered_json line = {{"config", to_json(config)}};
  // Paths may be any bytes; what is not UTF-8 in them is replaced.
  write_line(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void MetricsWriter::write(const StepResult& step) { write_line(format_metrics(step)); }

void MetricsWriter::write_line(const std::string& line) {
  const bool written = std::fputs((line + '\n').c_str(), file_.get()) >= 0 && std::fflush(file_.get()) == 0;
  if (!written) fail(path_);
}

}  // namespace train_gpt
