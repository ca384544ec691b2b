// Progress of a start of `sherd run`: finished steps, by the files that the program writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "run_target.h"

namespace sherd::tools {

class RunProgress {
 public:
  /// Reads the state of the files before a start. `target` outlives it.
  explicit RunProgress(const RunTarget& target);
  /// Returns whether a step was finished since: a new checkpoint exists, or a new line of --metrics has a
  /// "step". False if the program has neither.
  bool made() const;
  /// From the newest checkpoint of this run, or from the construction if that is later, until now.
  double seconds_since_checkpoint() const;

 private:
  const RunTarget& target_;
  RunTarget::Newest before_;
  std::filesystem::file_time_type begun_;
  uintmax_t metrics_bytes_ = 0;
};

}  // namespace sherd::tools
