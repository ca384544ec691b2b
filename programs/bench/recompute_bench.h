// The price of computing activations again, in time, and what it saves, in bytes.
#pragma once

#include <cstdint>

namespace sherd_bench {

struct RecomputeBench {
  int ranks = 2, rounds = 7;
  int64_t dim = 512, layers = 8, heads = 8, seq = 512;
};

/// Trains train_gpt's model with and without, under zero3 and AdamW, and prints losses, collectives, peaks and times.
/// @return whether the bits and the collectives are the same and the peaks are within 5 % of what is expected.
bool run_recompute(const RecomputeBench& bench);

}  // namespace sherd_bench
