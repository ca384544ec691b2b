// Balance of a plan: owners by LPT, and the local matrices that move for it. Private to optim/.
#pragma once

#include <cstddef>
#include <vector>

#include <sherd/optim/whole/detail/plan_draft.h>

namespace sherd {

/// Assigns an owner to each pending matrix, on top of the loads of the draft.
void assign_owners(PlanDraft& draft, std::vector<size_t> pending);
/// Assigns owners again where local work has unbalanced the plan: first only the local matrices of overloaded
/// ranks may move, then all local matrices. Keeps a new assignment only if the largest load gets smaller.
void rebalance(PlanDraft& draft);

}  // namespace sherd
