// Number of ranks of a restart.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::tools {

/// Rules for the number of ranks, so that a run takes the same steps on the same data as before: the batch is
/// split evenly, and the number of ranks that share tensors or experts is unchanged.
struct RankRules {
  /// Sequences of a step; 0: unknown, any number of ranks may split it.
  int64_t batch = 0;
  int64_t grad_accum = 1;
  int64_t replicas = 1;
  /// Tensor-, expert- and context-parallel ranks.
  int64_t tp = 1, ep = 1, context = 1;

  /// Returns whether `ranks` fits. @pre ranks >= 1 and all of the above >= 1 (batch >= 0).
  bool allow(int64_t ranks) const;
  /// Describes the rules that apply: "a batch of 12, 2 microbatches, tp 2"; "no rule" without one.
  std::string describe() const;
};

/// The largest number of ranks from `least` to `most` that the rules allow; 0 without one.
int64_t choose_ranks(int64_t most, int64_t least, const RankRules& rules);

}  // namespace sherd::tools
