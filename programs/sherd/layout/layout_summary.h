// Human-readable summary of a layout.
#pragma once

#include <string>

#include "arrangement.h"

namespace sherd::tools {

/// Smallest, mean and largest value over the ranks.
struct Spread {
  double min = 0, mean = 0, max = 0;
  /// max / mean; 1 when all are zero.
  double evenness() const { return mean > 0 ? max / mean : 1; }
};

/// Contents of the ranks, over all buffers.
struct RankTotals {
  Spread elements;     // of parameters, without padding
  Spread state_bytes;  // AdamW keeps two, Muon one f32 per element; SOAP's is on the owners of matrices
  Spread owned_bytes;  // of the last kind
  Spread cost;         // that the plan gives it
};
RankTotals rank_totals(const Arrangement& a);

/// Returns the largest bytes of owner-placed state on a rank / max(sum of all / ranks, largest of a matrix); 1 without any.
double state_imbalance(const Arrangement& a);

/// Buffers (padding, cut rows), spreads over the ranks, the plan in a few lines.
std::string summary(const Arrangement& a);

}  // namespace sherd::tools
