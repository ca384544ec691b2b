// Boxes of state of whole matrices. Private to checkpoint/.
#pragma once

#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/optim/state.h>

namespace sherd {

/// Returns the boxes of the whole tensor that `state.local` holds, in its order: one for each run of consecutive
/// matrices of a stack.
std::vector<Box> boxes_of(const OwnedState& state);

}  // namespace sherd
