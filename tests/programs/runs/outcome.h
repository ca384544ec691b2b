// Results of a run of train_gpt, to be compared with those of another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "programs/runs/program.h"

namespace sherd::test {

using Flags = std::vector<std::string>;

inline Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::string show(const Flags& flags);

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<int64_t> zeros;
  std::string weights;  // the exported file
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Trains on the golden text with these flags, --quiet, and expects success and silence. `launcher`: as for run_train_gpt().
Outcome train_quietly(const Flags& flags, const std::string& launcher = "");

/// Losses of each step within `tolerance`, relative.
void expect_close_losses(const Outcome& got, const Outcome& want, double tolerance, const std::string& what);

/// Returns whether SHERD_NIGHTLY is set: suites then run what is too long for every change.
bool nightly();

/// Returns the optimizers of suites that compare bits over many arrangements: Muon, whose runs have AdamW for what is not
/// Muon's; nightly, AdamW alone as well.
std::vector<const char*> optimizers_in_bits();

/// In this order: the first two are a family with gradient accumulation, the last two are another.
extern const Flags kStrategies;

}  // namespace sherd::test
