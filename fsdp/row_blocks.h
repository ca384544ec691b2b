// Logical matrices inside one fused parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// One logical matrix: `count` runs of `size` rows; run i starts at row begin + i * stride. Its rows in order
/// of the runs form the matrix that an optimizer orthogonalizes by itself and scales by its own shape.
struct RowBlock {
  std::string name;
  int64_t begin = 0, size = 0, stride = 0, count = 1;
  /// Under tensor parallelism a rank gets whole blocks (whole heads), not a part of each. Set on one block, it
  /// holds for all blocks of the parameter.
  bool dealt = false;
  int64_t rows() const { return size * count; }
  /// Row of the parameter that row i of the block is.
  int64_t row(int64_t i) const { return begin + i / size * stride + i % size; }
  bool operator==(const RowBlock&) const = default;
};
using RowBlocks = std::vector<RowBlock>;

/// Blocks one below another (q, k and v; gate and up), named "0", "1", ... unless names are given.
RowBlocks stacked_blocks(const std::vector<int64_t>& rows, const std::vector<std::string>& names = {});
/// `ways` blocks whose rows alternate: row i belongs to block i mod ways (interleaved gate and up).
RowBlocks interleaved_blocks(int64_t rows, int ways, const std::vector<std::string>& names = {});
/// One block for each head of `head_dim` rows, dealt out whole.
RowBlocks head_blocks(int64_t heads, int64_t head_dim);
/// Fused grouped-query projection, group by group: [queries_per_group heads of q, (as many of gate,) one head
/// of k, one of v] x groups. Blocks q, (gate,) k, v, each collected over the groups.
RowBlocks grouped_query_blocks(int64_t groups, int64_t queries_per_group, int64_t head_dim,
                               bool gated = false);

/// "" when the blocks cover rows 0..rows-1 exactly once, else what is wrong.
std::string check_blocks(const RowBlocks& blocks, int64_t rows);

}  // namespace sherd
