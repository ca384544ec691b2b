// A parameter that is itself a shard: tensor- or expert-parallel, cut before FSDP shards what is left.
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
struct TensorShard {
  std::string mesh_dim = "tp";
  int dim = 0;
  int parts = 1;
  int index = 0;
  bool operator==(const TensorShard&) const = default;
};

/// A contiguous run of local elements that is contiguous in the global parameter, too.
struct GlobalRun {
  ParamIndex local, global;
  int64_t count = 0;
};

/// Shape of the whole parameter, given the local shape.
Shape global_shape(const Shape& local, const TensorShard& shard);
/// Where the elements of a local interval lie in the global parameter, in local order, runs merged as far as
/// they are contiguous in both. `blocks` as declared on the local shape.
/// @pre 0 <= range.begin <= range.end <= elements of `local`; 0 <= shard.dim < local.size()
std::vector<GlobalRun> global_runs(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                                   ParamRange range);
/// The same as boxes of the global tensor: box after box, each in row-major order, are the elements in local
/// order.
std::vector<Box> global_boxes(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                              ParamRange range);

}  // namespace sherd
