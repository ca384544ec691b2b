// Parameter description for layouts. The runtime and the planning tools share it, so that both assign
// parameters to ranks by the same costs.
#pragma once

#include <string>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/row_blocks.h>

namespace sherd {

/// Returns a parameter with the cost for the rank that has it unsharded: packing_cost() for a matrix, the sum
/// over its matrices for a stack [count, rows, cols], the sum over its blocks for a fused matrix (or a stack
/// of fused matrices), since each block is orthogonalized by itself. For any other parameter the cost is its
/// number of elements.
/// @param blocks of the rows of each matrix; empty = one. Unused for parameters of other than two or three
/// dimensions, which are never orthogonalized.
LayoutParam layout_param(std::string name, Shape shape, CutClass cut, const RowBlocks& blocks);

}  // namespace sherd
