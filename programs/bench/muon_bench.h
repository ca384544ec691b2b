// The cost of Muon: its optimizer phase by plan entry and form, and a whole step beside one of AdamW.
#pragma once

#include <string>

namespace sherd_bench {

struct MuonBench {
  int ranks = 4, dim = 384, layers = 6, rounds = 5;
  int step_ranks = 2, tokens = 16384, step_rounds = 3;
  std::string device = "cpu";                 // or "cuda", whose ranks share the GPUs there are
  std::string symmetric_products = "blocks";  // as in DeviceOptions
};

/// Prints a table of medians and ratios.
void run_muon(const MuonBench& bench);

}  // namespace sherd_bench
