// What a run tells people: the records the trainer fills, and the summary at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/comm/communicator.h>

#include "process_memory.h"

namespace train_gpt {

/// What one step did, the same on every rank unless said otherwise.
struct StepResult {
  int64_t step = 0;  // from 1
  double loss = 0;   // mean over all tokens of the step, nats
  std::optional<double> eval_loss;
  float grad_norm = 0;
  int64_t num_zeros = 0;
  bool skipped = false;  // the gradients were not finite; weights and states are those of the step before
  int64_t skipped_steps = 0;  // of this run, up to this step
  double lr = 0;
  double step_ms = 0, optim_ms = 0, tokens_per_s = 0;
  sherd::CommCounts comm;         // this rank's
  int64_t peak_bytes = 0;         // largest over ranks
  int64_t host_syncs = 0;         // this rank's waits for its device while the step was issued
  std::optional<double> save_ms;  // of waiting for a checkpoint, where one was saved
};

/// Bytes of one rank, by purpose. `other_peak` is the rest of the most it ever held: activations, scratch
/// memory, copies for and from the host, and what the allocators keep for reuse.
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0, other_peak = 0;
};

/// A finished run.
struct Summary {
  double first_loss = 0, last_loss = 0;
  std::optional<double> eval_loss;  // the last one
  int64_t steps = 0;
  double seconds = 0;  // of training
  double tokens_per_s = 0;
  std::vector<RankMemory> ranks;  // in rank order
  RankMemory replicated;          // what every rank would hold without sharding; other_peak is not used
  std::optional<MemoryGrowth> process;
};

/// Several aligned lines: losses, speed, and the memory of every rank beside what replication would take.
std::string format_summary(const Summary& summary);

/// Generated text under a heading, indented; bytes that a terminal would not print as one character each are
/// shown as \xNN, line breaks are kept.
std::string format_sample(std::string_view text);

/// "987", "45.2k", "1.23M"
std::string format_count(double count);
/// "0:07", "12:34", "1:02:03"
std::string format_duration(double seconds);

}  // namespace train_gpt
