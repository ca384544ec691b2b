// Human-readable report of a run: the summary at its end, and short number formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sherd/train/report/memory_report.h>
#include <sherd/train/report/process_memory.h>
#include <sherd/train/report/step_result.h>

namespace sherd {

/// A finished run.
struct Summary {
  double first_loss = 0, last_loss = 0;
  std::optional<double> eval_loss;      // the last one
  std::optional<double> eval_loss_ema;  // of the averages of weights
  SetLosses eval_sets{};                // its sets, if they have names
  std::string loss_unit = "nats per token";
  int64_t steps = 0;
  double seconds = 0;  // of training alone
  double evaluation_seconds = 0;
  double saving_seconds = 0;      // time that training waited for checkpoints
  double tokens_per_s = 0;        // of training alone
  std::vector<RankMemory> ranks;  // in rank order
  RankMemory replicated;          // what every rank would hold without sharding; other_peak is not used
  std::optional<MemoryGrowth> process;
};

/// ": web 2.5000, code 1.2500"; empty without sets.
std::string format_sets(const SetLosses& sets);
/// Formats aligned lines: losses, speed, and the memory of every rank beside that of replication.
std::string format_summary(const Summary& summary);

/// "987", "45.2k", "1.23M"
std::string format_count(double count);
/// "0:07", "12:34", "1:02:03"
std::string format_duration(double seconds);

}  // namespace sherd
