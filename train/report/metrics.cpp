#include <sherd/train/report/metrics.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/train/guards/slow_rank.h>

namespace sherd {
namespace {

/// Not left to a JSON library: they print the fewest digits that restore the number, which may be fewer
/// than 17.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:#.17g}", value) : "null"; }

/// Returns the known figures beside tokens per second, each followed by a comma.
std::string speed(const StepResult& s) {
  return (s.flops_per_s ? fmt::format(R"("flops_per_s": {}, )", number(*s.flops_per_s)) : "") +
         (s.mfu ? fmt::format(R"("mfu": {}, )", number(*s.mfu)) : "") +
         (s.product_share ? fmt::format(R"("product_share": {}, )", number(*s.product_share)) : "") +
         (s.epoch ? fmt::format(R"("epoch": {}, )", number(*s.epoch)) : "");
}

/// With a comma before it.
std::string arrival(const StepResult& s) {
  const auto figures = arrival_figures(s.arrivals);
  if (!figures) return "";
  return fmt::format(R"(, "arrival_ms": {{"median": {}, "worst": {}, "rank": {}}})", number(figures->median),
                     number(figures->worst), figures->rank);
}

std::string evaluation(double loss, const SetLosses& sets) {
  std::vector<std::string> each;
  for (const auto& [name, of_set] : sets) each.push_back(fmt::format(R"("{}": {})", name, number(of_set)));
  return fmt::format(R"("eval_loss": {}, "eval_ppl": {}{})", number(loss), number(std::exp(loss)),
                     sets.empty() ? "" : fmt::format(R"(, "eval_sets": {{{}}})", fmt::join(each, ", ")));
}

// A run that was killed may have left a part of one.
bool ends_in_the_middle_of_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

// Returns whether the latest writer is an earlier start of the same run under `sherd run`.
bool is_of_an_earlier_start(const std::string& path, const LockHolder& self) {
  if (self.run.empty()) return false;
  LockHolder last;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(R"({"config":)")) continue;
    const auto json = read_json_or_null(line);
    if (!json.is_object()) continue;
    const auto run = json.value("run", nlohmann::json::object());
    const bool whole = run.is_object() && run.contains("mark") && run["mark"].is_string() &&
                       run.contains("start") && run["start"].is_number_unsigned();
    last.run = whole ? run["mark"].get<std::string>() : "";
    last.start = whole ? run["start"].get<uint64_t>() : 0;
  }
  return last.run == self.run && last.start < self.start;
}

}  // namespace

std::string format_metrics(const StepResult& s) {
  std::vector<std::string> comm;
  for (const auto& [name, count] : s.comm) {
    comm.push_back(fmt::format(R"("{}": {{"calls": {}, "bytes": {}}})", name, count.calls, count.bytes));
  }
  return fmt::format(
      R"({{"step": {}, "loss": {}, {}{}{}"grad_norm": {}, "num_zeros": {}, "skipped": {}, "skipped_steps": {}, {})"
      R"("lr": {}, "tokens_per_s": {}, {}"step_ms": {}, "optim_ms": {}, "comm": {{{}}}{}, "peak_bytes": {}, )"
      R"({}"host_syncs": {}{}{}}})",
      s.step, number(s.loss), s.mtp_loss ? fmt::format(R"("mtp_loss": {}, )", number(*s.mtp_loss)) : "",
      s.eval_loss ? evaluation(*s.eval_loss, s.eval_sets) + ", " : "",
      s.eval_loss_ema ? fmt::format(R"("eval_loss_ema": {}, )", number(*s.eval_loss_ema)) : "",
      number(s.grad_norm), s.num_zeros, s.skipped, s.skipped_steps,
      s.loss_spike ? R"("loss_spike": true, )" : "", number(s.lr), number(s.tokens_per_s), speed(s),
      number(s.step_ms), number(s.optim_ms), fmt::join(comm, ", "), arrival(s), s.peak_bytes,
      s.planned_peak_bytes ? fmt::format(R"("planned_peak_bytes": {}, )", *s.planned_peak_bytes) : "",
      s.host_syncs, s.eval_ms ? fmt::format(R"(, "eval_ms": {})", number(*s.eval_ms)) : "",
      s.save_ms ? fmt::format(R"(, "save_ms": {})", number(*s.save_ms)) : "");
}

void read_losses(const std::string& path, int64_t steps, std::vector<double>& losses,
                 std::vector<std::pair<int64_t, double>>& held_out) {
  losses.assign(static_cast<size_t>(steps), std::numeric_limits<double>::quiet_NaN());
  std::map<int64_t, double> evaluated;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = read_json_or_null(line);  // the last line may be torn
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

MetricsWriter::MetricsWriter(const std::string& path, const std::string& config, bool go_on,
                             const LockHolder& self)
    : file_(path, "metrics", "line", go_on, [&] { return is_of_an_earlier_start(path, self); }) {
  const std::string run =
      self.run.empty()
          ? ""
          : fmt::format(R"(,"run":{})", nlohmann::json{{"mark", self.run}, {"start", self.start}}.dump(
                                            -1, ' ', false, nlohmann::json::error_handler_t::replace));
  file_.write_head(
      fmt::format("{}{{\"config\":{}{}}}\n", ends_in_the_middle_of_a_line(path) ? "\n" : "", config, run));
}

void MetricsWriter::write(const StepResult& step) { file_.write(format_metrics(step) + '\n'); }

void MetricsWriter::write_evaluation(int64_t step, double loss, const SetLosses& sets) {
  file_.write(fmt::format(R"({{"step": {}, {}}})", step, evaluation(loss, sets)) + '\n');
}

}  // namespace sherd
