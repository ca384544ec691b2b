// Logical matrices that Muon orthogonalizes, and the places of their elements.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/row_blocks.h>
#include <sherd/fsdp/tensor_shard.h>

namespace sherd {

/// One block of one parameter: a whole 2-D parameter, a row block of it, or one matrix (or a block of it) of
/// a stack [count, rows, cols]. Its elements are rows of the parameter seen as [stack * rows, cols].
struct LogicalMatrix {
  std::string name;   // the parameter's name
  std::string block;  // "" for a whole parameter, else e.g. "q", "[3]", "[3].gate", "head0 of tp 1"
  int64_t rows = 0, cols = 0;
  /// Rows of the flattened parameter.
  RowBlock place;
  /// Layout of the parameter; it outlives the matrix.
  const ShardLayout* layout = nullptr;
  int param = 0;
  /// Matrices of one parameter whose state is one tensor for each key (MatrixStateSpec): equal row blocks of a stack, or
  /// heads and other blocks of one shape that tensor parallelism assigns whole. Names of the latter differ between ranks,
  /// so their set is named by the shape, "64x512". "" for a parameter or a stack without blocks.
  std::string stack;
  /// Matrices of the set over all tensor-parallel ranks; 0: this one, which is neither in a stack nor assigned whole.
  int64_t stack_size = 0;
  /// Index in the set, over all tensor-parallel ranks; 0 for a single matrix.
  int64_t stack_index = 0;
  /// Tensor parallelism cuts the matrix along dimension 0 or 1 in tensor_parts; -1: not cut. rows and cols
  /// are this rank's.
  int tensor_dim = -1, tensor_parts = 1;

  int64_t numel() const { return rows * cols; }
  int64_t whole_rows() const { return tensor_dim == 0 ? rows * tensor_parts : rows; }
  int64_t whole_cols() const { return tensor_dim == 1 ? cols * tensor_parts : cols; }
  /// Returns "name" or "name block".
  std::string label() const { return block.empty() ? name : name + " " + block; }

  /// Calls f(first element of the parameter, first element of the matrix, count) for every contiguous run of
  /// the matrix inside `range` of the parameter, in increasing order.
  template <class F>
  void for_runs(ParamRange range, F f) const {
    if (range.empty() || numel() == 0) return;
    int64_t run = 0;
    if (place.count > 1 && place.stride > 0) {
      const int64_t row = range.begin.value / cols - place.begin - place.size;
      run = std::clamp<int64_t>(row / place.stride, 0, place.count - 1);
    }
    for (; run < place.count; ++run) {
      const int64_t first = (place.begin + run * place.stride) * cols, length = place.size * cols;
      const int64_t begin = std::max(first, range.begin.value),
                    end = std::min(first + length, range.end.value);
      if (first >= range.end.value) return;
      if (begin < end) f(begin, run * length + begin - first, end - begin);
    }
  }
  /// Returns the number of its elements on `cell` of the layout.
  int64_t elements_on(int cell) const;
  /// Range of cells that may hold elements of it: [first, last], last < first when it is empty.
  struct Cells {
    int first = 0, last = -1;
    int count() const { return last - first + 1; }
  };
  Cells cells() const;
};

/// Returns the logical matrices of a parameter that is routed to Muon, in row order of their blocks.
/// @param blocks of one matrix of the stack; empty = one block. `shape` has two or three dimensions.
[[nodiscard]] std::vector<LogicalMatrix> logical_matrices(const std::string& name, const Shape& shape,
                                                          const RowBlocks& blocks,
                                                          const std::optional<TensorShard>& tensor,
                                                          const ShardLayout& layout, int param);

}  // namespace sherd
