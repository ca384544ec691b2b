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
/// Returns `count` steps of a run of steps [first, last], from its third on, after the warm-up; the last ones
/// of a shorter run.
[[nodiscard]] StepRange traced_steps(int64_t first, int64_t last, int64_t count);

struct TraceOptions {
  /// Files for chrome://tracing or Perfetto, and of a picture (SVG); empty: no such file.
  std::string trace = {}, timeline = {};
  /// Steps to trace, and the step that training ends with: traced_steps() of them.
  int64_t steps = 2;
  int64_t last_step = 0;
  /// Title of both, naming the run. The range of steps is added.
  std::string title = {};
};

class TraceOutput {
 public:
  /// Gives the rank's device a trace where a file is requested; before any operation on it. `rank` outlives
  /// this.
  TraceOutput(RankContext& rank, TraceOptions options);
  /// Call it before each step, counted from 1; the first call is the run's first step.
  void before_step(int64_t step);
  /// Call it after the last step: rank 0 writes the files and returns lines about them. Collective.
  /// @throws IoError.
  std::vector<std::string> write();

 private:
  RankContext& rank_;
  TraceOptions options_;
  std::shared_ptr<Trace> trace_;  // null: no file is requested
  StepRange range_;
};

}  // namespace sherd
