// The cost of checkpoints: bytes per second beside dd's, and what saving behind training costs a step.
#pragma once

#include <cstdint>
#include <string>

namespace sherd_bench {

struct CheckpointBench {
  std::string folder = ".";
  int ranks = 4;
  double gib = 1;
  int rounds = 3;
  bool async = false;  // of the saves beside dd
  int steps = 60, save_every = 10, step_ranks = 2;
};

/// Prints tables of medians and ratios. Writes below `folder` (a folder of its own, removed at the end).
void run_checkpoint(const CheckpointBench& bench);

}  // namespace sherd_bench
