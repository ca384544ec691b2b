// Shard of tensor or expert parallelism as a parameter, cut before FSDP shards the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/fsdp/row_blocks.h>

namespace sherd {

/// Dimension `dim` of the global parameter is cut in `parts` equal pieces over mesh dimension `mesh_dim`;
/// this rank's module holds piece `index`. A parameter of stacked row blocks (stacked_blocks()) that is cut
/// along its rows (dimension 0 of a matrix, 1 of a stack of matrices) is cut block by block: every rank holds
/// some of q, of k and of v. Blocks that are dealt out whole (RowBlock::dealt, such as heads) and blocks of
/// several runs (such as those of grouped queries) are cut in one range: every rank holds some whole heads or
/// groups. So is everything else.
///
/// Example: fused q, k and v of 4 rows each, a parameter of 12 rows, over tp 2. Each rank's module declares 6
/// rows with stacked_blocks({2, 2, 2}) and TensorShard{"tp", 0, 2, index}. By rows of the global parameter:
///
///     global       q0 q1 q2 q3  k0 k1 k2 k3  v0 v1 v2 v3
///     index 0 has  q0 q1        k0 k1        v0 v1        local rows 0-5 are global rows 0 1 4 5 8 9
///     index 1 has        q2 q3        k2 k3        v2 v3  local rows 0-5 are global rows 2 3 6 7 10 11
///
/// so that global_boxes() of all of index 1 are three boxes of 2 rows, at rows 2, 6 and 10. Were the same 6
/// rows three heads (head_blocks(3, 2)), index 1 would have global rows 6 to 11, one box.
///
/// A dimension 0 that `parts` does not divide (a vocabulary) is cut in pieces of ceil(size / parts) rows, of which the
/// last ones have fewer or none: every module declares as many rows, and those behind the global parameter's last
/// are padding. They are zero and stay so, and no shard of the parameter holds them, so that no file, optimizer or
/// norm sees any. Whoever computes with the parameter gives them gradients of zero.
struct TensorShard {
  std::string mesh_dim = "tp";
  int dim = 0;
  int parts = 1;
  int index = 0;
  /// Of the global parameter along `dim` where there may be padding; 0: parts times the local one.
  int64_t size = 0;
  bool operator==(const TensorShard&) const = default;
};

/// A contiguous run of local elements that is contiguous in the global parameter, too.
struct GlobalRun {
  ParamIndex local, global;
  int64_t count = 0;
};

/// Shape of the whole parameter, given the local shape.
Shape global_shape(const Shape& local, const TensorShard& shard);
/// Elements of the local parameter, from the first on, that are not padding.
int64_t held_elements(const Shape& local, const TensorShard& shard);
/// The part of a local interval that lies before element `end`; empty at `end` where there is none.
ParamRange clipped(ParamRange range, int64_t end);
/// Where the elements of a local interval lie in the global parameter, in local order, runs merged as far as
/// they are contiguous in both. `blocks` as declared on the local shape.
/// @pre 0 <= range.begin <= range.end <= held_elements(); 0 <= shard.dim < local.size()
std::vector<GlobalRun> global_runs(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                                   ParamRange range);
/// The same as boxes of the global tensor: box after box, each in row-major order, are the elements in local
/// order.
std::vector<Box> global_boxes(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                              ParamRange range);

}  // namespace sherd
