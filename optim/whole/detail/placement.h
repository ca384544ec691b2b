// Placement of matrices whose owners need no choice. Private to optim/.
#pragma once

#include <cstddef>
#include <vector>

#include <sherd/optim/whole/detail/plan_draft.h>

namespace sherd {

/// Makes the entries that need no choice of owner, and adds their cost to the loads. Returns the other
/// matrices.
/// @throws InvalidArgument naming all matrices for which a forced mode is not possible.
std::vector<size_t> place_fixed(PlanDraft& draft);

}  // namespace sherd
