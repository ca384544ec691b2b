// Gram entries of a plan: matrices whose owners each hold a range of the rows. Private to optim/.
#pragma once

#include <cstddef>

#include <sherd/optim/whole/detail/plan_draft.h>

namespace sherd {

/// Returns whether a plan may use a gram entry for matrix i and is faster with it.
bool gram_is_faster(const PlanDraft& draft, size_t i);
/// Makes entry i a gram entry of the ranks that hold the matrix, and adds its cost to their loads.
void make_gram_entry(PlanDraft& draft, size_t i);
/// Returns the cost for each owner of gram entry i, in the unit of MatrixWork::cost().
double gram_cost(const PlanDraft& draft, size_t i);

}  // namespace sherd
