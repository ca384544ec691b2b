// Result of one training step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Losses of sets of evaluation data, by name, in the sets' order.
using SetLosses = std::vector<std::pair<std::string, double>>;

/// The same on every rank unless said otherwise. The program's training loop fills it; metrics and progress
/// show it.
struct StepResult {
  int64_t step = 0;                  // from 1
  double loss = 0;                   // mean over all tokens of the step
  std::optional<double> mtp_loss{};  // of multi-token prediction, if trained: its losses over the same tokens
  std::optional<double> eval_loss;
  std::optional<double> eval_loss_ema;  // of the averages of weights, if the run keeps any
  SetLosses eval_sets{};                // that eval_loss is the weighted mean of; empty without named sets
  float grad_norm = 0;
  int64_t num_zeros = 0;
  bool skipped = false;       // the gradients were not finite; weights and states are unchanged
  int64_t skipped_steps = 0;  // of this run, up to this step
  bool loss_spike = false;    // where the program looks for them (loss_spike.h); known on rank 0 alone
  double lr = 0;
  double step_ms = 0, optim_ms = 0, tokens_per_s = 0;
  /// Totals over all ranks; as parts of their devices' dense peak (dense_peak.h) and of measured products
  /// (gemm_ceiling.h).
  std::optional<double> flops_per_s, mfu, product_share;
  std::optional<double> epoch;  // of token files: how often the first stream's windows have been seen
  CommCounts comm;              // this rank's
  ArrivalTotals arrivals;       // since the step before, as this rank observes them; empty where it does not
  int64_t peak_bytes = 0;       // largest over ranks
  std::optional<int64_t> planned_peak_bytes;  // of the ranks that the program has planned
  int64_t host_syncs = 0;                     // this rank's waits for its device while the step was issued
  std::optional<double> eval_ms;              // duration of the evaluation after the step, if any
  std::optional<double> save_ms;              // time spent waiting for a checkpoint, if one was saved
};

}  // namespace sherd
