// Sums of a plan: bytes, FLOPs and costs of entries and ranks, and the fingerprint. Private to optim/.
#pragma once

#include <sherd/optim/whole/detail/plan_draft.h>

namespace sherd {

/// Fills in all that follows from the entries' modes and owners.
void account(PlanDraft& draft);

}  // namespace sherd
