// Parameter description for layouts. The runtime and the planning tools share it, so that both assign
// parameters to ranks by the same costs.
#pragma once

#include <string>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/row_blocks.h>

namespace sherd {

/// A parameter with what it costs the rank that has it whole: a matrix as packing_cost() says, a stack of
/// matrices [count, rows, cols] what its matrices cost, a fused matrix (or a stack of such) what its blocks
/// cost, for each of them is orthogonalized by itself. Of anything else the number of elements.
/// @param blocks of the rows of each matrix; empty = one. Parameters of other than two or three dimensions
/// are never orthogonalized, and theirs are not looked at.
LayoutParam layout_param(std::string name, Shape shape, CutClass cut, const RowBlocks& blocks);

}  // namespace sherd
