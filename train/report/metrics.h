// Metrics file of a run: one JSON object per line.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/files/save_lock.h>
#include <sherd/train/report/step_result.h>
#include <sherd/train/saving/append_file.h>

namespace sherd {

/// Line 1 is {"config": {...}}, of a run under `sherd run` {"config": {...}, "run": {...}} with
/// the supervisor's mark and which of its starts wrote it, {"mark": "...", "start": 2}; every other line is one step:
///
///   step          from 1
///   epoch         of token files, where there are some: how often the first stream's windows have been seen
///   loss          mean over the step's tokens, nats
///   mtp_loss      of multi-token prediction, where it is trained: the sum of its losses over the same number of tokens
///   eval_loss     over the held-out tokens, where the step was evaluated; eval_ppl: its perplexity, e^eval_loss
///   eval_loss_ema the same of the averages of weights, where the run keeps any
///   eval_sets     {"web": 2.5, ...}, with named sets: the loss of each; eval_loss is their weighted mean
///   grad_norm     before clipping; num_zeros: gradient elements that are zero
///   skipped       whether gradients were not finite, so that nothing was updated
///   skipped_steps how many were, in this run up to this step
///   loss_spike    true, in steps whose loss was one (loss_spike.h)
///   lr            of this step; tokens_per_s
///   flops_per_s   of all ranks by formula (flops.h), where the program counts
///   mfu           its part of the dense peak of the ranks' GPUs, where that is known (dense_peak.h)
///   product_share its part of the rate of plain matrix products, where that was measured (gemm_ceiling.h)
///   step_ms       on the device, from the end of the step before or, where that
///                 was earlier, from the step's issue
///   optim_ms      the optimizer's part of it
///   comm          {"all_gather": {"calls": 9, "bytes": 4096}, ...} of rank 0 in this step, those
///                 of the loss and of these figures included
///   arrival_ms    {"median": 0.2, "worst": 7.5, "rank": 3}: how late ranks came to the collectives since the
///                 step before, each rank's time after the first to come, summed; over ranks, and the rank of
///                 the worst. Of the collectives that Communicator::arrivals() reports on rank 0; missing
///                 without any
///   peak_bytes    largest over ranks; planned_peak_bytes: as predicted at the start (--plan)
///   host_syncs    how often rank 0's host waited for its device while the step was issued
///   eval_ms       duration of the step's evaluation, where there was one, on rank 0
///   save_ms       time that training waited for a checkpoint before the step, where one was saved
///
/// Floating-point numbers have 17 significant digits, enough to restore every bit. NaN and infinities, which
/// JSON does not have, are written as null.
class MetricsWriter {
 public:
  /// Creates or empties the file and writes line 1; with `go_on`, for a run that is resumed, appends to an
  /// existing file (its new config line comes before the new steps). Holds its lock (flock): two runs cannot
  /// share one. But a later start under `sherd run` takes it from an earlier one, as it takes the save folder
  /// (SaveLock): the earlier one may be suspended or on an unreachable host, and writes to a file without a
  /// name from then on.
  /// @param config the settings as a JSON object: config_text().
  /// @param self of which `run` and `start` are read.
  /// @throws IoError.
  MetricsWriter(const std::string& path, const std::string& config, bool go_on = false,
                const LockHolder& self = LockHolder::of_this_process());

  /// Appends a line. It is in the file (handed to the system) on return, unless failure() says otherwise:
  /// lines then wait, and are tried again before the next one and by flush(). Beyond 16 MiB, further lines
  /// are lost. A regular file never keeps partial lines.
  void write(const StepResult& step);
  /// Appends a line of a model that was only evaluated: its step, eval_loss, eval_ppl and eval_sets.
  void write_evaluation(int64_t step, double loss, const SetLosses& sets = {});
  void flush() { file_.flush(); }
  /// Returns why lines are missing in the file, and how many; empty when it has all.
  std::string failure() const { return file_.failure(); }

 private:
  AppendFile file_;
};

/// Reads the losses of steps 1, ..., `steps` from a metrics file, for the picture of a resumed run. NaN where
/// the file (which may be missing) does not have them; the last line of a step counts. Held-out losses are
/// appended in order of steps.
void read_losses(const std::string& path, int64_t steps, std::vector<double>& losses,
                 std::vector<std::pair<int64_t, double>>& held_out);

/// Formats the line of one step, without line break.
std::string format_metrics(const StepResult& step);

}  // namespace sherd
