// The cost of comparing the ranks' copies of weights, beside loading them.
#pragma once

#include <string>

namespace sherd_bench {

struct CopiesBench {
  std::string folder = ".";
  double gib = 1;    // in the file
  bool f32 = false;  // bf16 otherwise, as weights are published
  int ranks = 1;     // threads; of a job that mpirun started, its processes
  int tensors = 192, rounds = 9;
};

/// Prints medians of the comparison and of loading in turn, from the disk and from the system's cache. Writes below
/// `folder` (a folder of its own, removed at the end).
void run_copies(const CopiesBench& bench);

}  // namespace sherd_bench
