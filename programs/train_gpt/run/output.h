// Output of rank 0 of the world.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/printable.h>
#include <sherd/train/report/event_writer.h>
#include <sherd/train/report/loss_svg.h>
#include <sherd/train/report/metrics.h>
#include <sherd/train/report/process_memory.h>

#include "train_gpt/rules/parse_config.h"
#include "train_gpt/run/run_plan.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Prints `text` and flushes it, so that a pipe receives it at once. A failed write does not end training;
/// sherd::finish_stdout() reports it.
void print(const std::string& text);

/// Outputs of rank 0; other ranks, threads or processes, have none.
struct Output {
  Output(const CommandLine& line, const sherd::ProcessMemory& at_start);
  /// Opens --metrics, once the strategy is chosen. @throws sherd::IoError.
  void open(const TrainConfig& config);
  /// Opens the event file of --log-dir; `step` steps are done. @throws sherd::IoError.
  void begin(const TrainConfig& config, int64_t step);
  /// Writes a step to the metrics and the event file, after adding its operations per second. A full disk,
  /// which may have room again, ends training only where that is asked for. @throws sherd::IoError then.
  void write_step(sherd::StepResult& result, const TrainConfig& config);
  void write_evaluation(int64_t step, double loss, const sherd::SetLosses& sets);
  /// Retries failed writes. @returns the missing outputs; empty: none.
  std::vector<std::string> finish();

  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (!quiet) print(sherd::printable_lines(fmt::format(format, std::forward<Args>(args)...)));
  }

  bool quiet;
  std::vector<std::string> inherited;  // CommandLine::inherited
  std::vector<std::string> notes;      // CommandLine::notes
  sherd::ProcessMemory start;          // before there were ranks
  std::optional<sherd::MetricsWriter> metrics;
  std::optional<sherd::EventWriter> events;
  std::optional<double> dense_peak;    // sherd::dense_peak()
  std::optional<double> product_rate;  // sherd::gemm_ceiling()
  std::optional<RunPlan> plan;         // --plan
  sherd::CommCounts comm;              // of the last step
  int64_t peak_bytes = 0;              // up to it
  double flops_per_token = 0;
  sherd::LossCurve losses, held_out;     // also of steps before a resume
  double first_loss = 0, last_loss = 0;  // of this run's steps
  int64_t first = 0;                     // steps before this run
  std::optional<double> last_held_out;
  std::optional<double> held_out_ema;  // the last one, of averages
  sherd::SetLosses held_out_sets;      // of the last of them
  double seconds = 0;                  // of training, without the two that follow
  double evaluation_seconds = 0;
  double saving_seconds = 0;

 private:
  std::vector<std::string> failures() const;
  bool write_failed_ = false;  // and a warning said so
};

}  // namespace train_gpt
