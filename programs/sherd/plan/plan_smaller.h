// Flags by which a run that does not fit fits.
#pragma once

#include <string>
#include <vector>

#include "plan.h"

namespace sherd::tools {

/// A set of memory flags (train_gpt/run/less_memory.h) and what is planned with it.
struct SmallerPlan {
  std::string flags;
  bool same_bits = true;
  Plan plan;
};

/// Returns the fastest plan that fits and has the same bits, and one that is faster still if other bits are allowed; each only
/// where there is one. Rank 0 and the one with most work are planned.
[[nodiscard]] std::vector<SmallerPlan> plans_that_fit(const PlanRequest& request);

/// Returns a line for each; that none of the flags suffices without any.
std::string smaller_table(const std::vector<SmallerPlan>& plans);

}  // namespace sherd::tools
