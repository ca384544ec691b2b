// Shard of tensor or expert parallelism as a parameter, cut before FSDP shards the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/fsdp/row_blocks.h>

namespace sherd {

/// Cut of dimension `dim` of the global parameter into `parts` equal pieces over mesh dimension `mesh_dim`;
/// this rank's module holds piece `index`. A parameter of stacked row blocks (stacked_blocks()) that is cut
/// along its rows (dimension 0 of a matrix, 1 of a stack of matrices) is cut block by block: every rank holds
/// some of q, of k and of v. Blocks that are assigned whole (RowBlock::dealt, such as heads) and blocks of
/// several runs (such as those of grouped queries) are cut in one range: every rank holds some whole heads or
/// groups. All other parameters are cut in one range, too.
///
/// Example: fused q, k and v of 4 rows each, a parameter of 12 rows, over tp 2. Each rank's module declares 6
/// rows with stacked_blocks({2, 2, 2}) and TensorShard{"tp", 0, 2, index}. By rows of the global parameter:
///
///    global       q0 q1 q2 q3  k0 k1 k2 k3  v0 v1 v2 v3
///    index 0 has  q0 q1        k0 k1        v0 v1        local rows 0-5 are global rows 0 1 4 5 8 9
///    index 1 has        q2 q3        k2 k3        v2 v3  local rows 0-5 are global rows 2 3 6 7 10 11
///
/// global_boxes() of all of index 1 are then three boxes of 2 rows, at rows 2, 6 and 10. If the same 6 rows
/// were three heads (head_blocks(3, 2)), index 1 would have global rows 6 to 11, one box.
///
/// A dimension 0 that `parts` does not divide (a vocabulary) is cut in pieces of ceil(size / parts) rows; the
/// last pieces have fewer or none. Every module declares as many rows, and rows after the global parameter's
/// last are padding. Padding is zero and stays zero. No shard of the parameter holds it, so files, optimizers
/// and norms never see it. The caller that computes with the parameter gives padding gradients of zero.
struct TensorShard {
  std::string mesh_dim = "tp";
  int dim = 0;
  int parts = 1;
  int index = 0;
  /// Size of the global parameter along `dim` where there may be padding; 0: parts times the local size.
  int64_t size = 0;
  bool operator==(const TensorShard&) const = default;
};

/// Contiguous run of local elements that is contiguous in the global parameter, too.
struct GlobalRun {
  ParamIndex local, global;
  int64_t count = 0;
};

/// Returns the shape of the global parameter, given the local shape.
Shape global_shape(const Shape& local, const TensorShard& shard);
/// Returns the number of leading elements of the local parameter that are not padding.
int64_t held_elements(const Shape& local, const TensorShard& shard);
/// Returns the part of a local interval before element `end`; empty at `end` without one.
ParamRange clipped(ParamRange range, int64_t end);
/// Returns the places of a local interval's elements in the global parameter, in local order. Runs are merged
/// where they are contiguous in both. `blocks` as declared on the local shape.
/// @pre 0 <= range.begin <= range.end <= held_elements(); 0 <= shard.dim < local.size()
std::vector<GlobalRun> global_runs(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                                   ParamRange range);
/// Returns the same as boxes of the global tensor. Box after box, each in row-major order, gives the local
/// order.
std::vector<Box> global_boxes(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                              ParamRange range);

}  // namespace sherd
