// Logical matrices inside one fused parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// One logical matrix: `count` runs of `size` rows; run i starts at row begin + i * stride. Its rows, in
/// order of the runs, form the matrix. An optimizer orthogonalizes it by itself and scales it by its own
/// shape.
struct RowBlock {
  std::string name;
  int64_t begin = 0, size = 0, stride = 0, count = 1;
  /// Under tensor parallelism a rank gets whole blocks (whole heads), not a part of each. Set on one block,
  /// it holds for all blocks of the parameter.
  bool dealt = false;
  int64_t rows() const { return size * count; }
  /// Returns the parameter's row for row i of the block.
  int64_t row(int64_t i) const { return begin + i / size * stride + i % size; }
  bool operator==(const RowBlock&) const = default;
};
using RowBlocks = std::vector<RowBlock>;

/// Returns stacked blocks (q, k and v; gate and up), named "0", "1", ... unless names are given.
RowBlocks stacked_blocks(const std::vector<int64_t>& rows, const std::vector<std::string>& names = {});
/// Returns `ways` blocks with alternating rows: row i belongs to block i mod ways (interleaved gate and up).
RowBlocks interleaved_blocks(int64_t rows, int ways, const std::vector<std::string>& names = {});
/// Returns one block of `head_dim` rows for each head, assigned to ranks whole.
RowBlocks head_blocks(int64_t heads, int64_t head_dim);
/// Returns blocks of a fused grouped-query projection, stored group by group: [queries_per_group heads of q,
/// (as many of gate,) one head of k, one of v] x groups. The blocks are q, (gate,) k, v, each collected over
/// the groups.
RowBlocks grouped_query_blocks(int64_t groups, int64_t queries_per_group, int64_t head_dim,
                               bool gated = false);

/// Returns "" when the blocks cover rows 0..rows-1 exactly once, else the error.
std::string check_blocks(const RowBlocks& blocks, int64_t rows);

}  // namespace sherd
