// Trace files of all ranks' streams during some steps: --trace and --timeline.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

namespace sherd {

struct StepRange {
  int64_t first = 0, last = -1;  // inclusive
};
/// `count` steps of a run of steps [first, last], from its third on, which is past the warm-up; its last ones
/// when it is shorter.
StepRange traced_steps(int64_t first, int64_t last, int64_t count);

struct TraceOptions {
  /// For chrome://tracing or Perfetto, and the same as a picture (SVG); empty: no such file.
  std::string trace = {}, timeline = {};
  /// Steps to trace, and the step that training ends with: traced_steps() of them.
  int64_t steps = 2;
  int64_t last_step = 0;
  /// Of both: what the run is. Which steps are shown is added.
  std::string title = {};
};

class TraceOutput {
 public:
  /// Gives the rank's device a trace where a file is asked for; before any work on it. `rank` outlives this.
  TraceOutput(RankContext& rank, TraceOptions options);
  /// Before each step, counted from 1; the first call is the run's first step.
  void before_step(int64_t step);
  /// After the last step: rank 0 writes the files and gets lines about them. Collective.
  /// @throws IoError.
  std::vector<std::string> write();

 private:
  RankContext& rank_;
  TraceOptions options_;
  std::shared_ptr<Trace> trace_;  // null: nothing is asked for
  StepRange range_;
};

}  // namespace sherd
