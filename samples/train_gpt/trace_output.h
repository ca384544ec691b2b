// --trace and --timeline: what all ranks' streams did during some steps, as files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

#include "config.h"

namespace train_gpt {

struct StepRange {
  int64_t first = 0, last = -1;  // inclusive
};
/// `count` steps of a run of steps [first, last], from its third on, which is past the warm-up; its last ones
/// when it is shorter.
StepRange traced_steps(int64_t first, int64_t last, int64_t count);

class TraceOutput {
 public:
  /// Gives the rank's device a trace where the flags ask for one; before any work on it.
  TraceOutput(sherd::RankContext& rank, const TrainConfig& config);
  /// Before each step, counted from 1; the first call is the run's first step.
  void before_step(int64_t step);
  /// After the last step: rank 0 writes the files and gets lines about them. Collective.
  /// @throws sherd::IoError.
  std::vector<std::string> write();

 private:
  sherd::RankContext& rank_;
  const TrainConfig& config_;
  std::shared_ptr<sherd::Trace> trace_;  // null: nothing is asked for
  StepRange range_;
};

}  // namespace train_gpt
