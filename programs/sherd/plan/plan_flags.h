// Flags of sherd plan: train_gpt's, and those of the plan.
#pragma once

#include <string>
#include <vector>

#include "plan.h"

namespace sherd::tools {

/// Flags of the command besides those of a run.
struct PlanFlags {
  std::string hardware = "h100";
  std::string params = {};  // file or folder of read_listed()
  int64_t pipeline = 1;
  bool search = false, keep_bits = false;
  int64_t max_tp = 0;    // 0: ranks of a host
  bool several = false;  // runs of other strategies or ranks are planned, too: --compare, --sweep
  /// Flags of the run, as train_gpt spells them, or by the names of kAliases.
  std::vector<std::string> run;
};

/// Lines for --help: the names that the command has for flags of train_gpt.
std::string aliases_help();

/// Reads the flags. Unless they are given: every data rank has one sequence in each microbatch, sequences of presets have
/// 4096 tokens where the model has as many positions, and on GPUs --precision is bf16.
/// @throws InvalidArgument naming all unusable flags and values, each with its remedy; IoError.
[[nodiscard]] PlanRequest parse_plan(const PlanFlags& flags);

}  // namespace sherd::tools
