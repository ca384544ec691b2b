// Plan as one rank of the team sees it. Private to optim/.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>

#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

/// Consecutive elements [begin, end).
struct Slice {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct RankView {
  std::span<const LogicalMatrix> matrices;
  const MatrixPlan& plan;
  int me = 0;

  const LogicalMatrix& matrix(int i) const { return matrices[static_cast<size_t>(i)]; }
  const PlanEntry& entry(int i) const { return plan.entries[static_cast<size_t>(i)]; }
  int cell_of(int rank) const { return rank / plan.copies; }
  /// Returns whether `rank` sends its piece to `to`, of all copies of its cell.
  bool is_source(int rank, int to) const { return rank % plan.copies == to % plan.copies; }
  Slice all_of(int i) const { return {0, matrix(i).numel()}; }

  /// Returns the elements of the matrix that owner k of its entry computes.
  Slice owned(int i, size_t k) const {
    const PlanEntry& e = entry(i);
    if (e.mode != PlanMode::gram) return all_of(i);
    return {e.first_row[k] * matrix(i).cols, e.first_row[k + 1] * matrix(i).cols};
  }

  /// Calls f(place in the cell's piece, place in the matrix, count) for the elements of a slice that `cell`
  /// holds.
  template <class F>
  void for_held(int i, int cell, Slice slice, F f) const {
    const LogicalMatrix& m = matrix(i);
    const ParamRange piece = m.layout->piece(ParamId(m.param), RankId(cell));
    m.for_runs(piece, [&](int64_t at, int64_t in, int64_t n) {
      const int64_t begin = std::max(in, slice.begin), end = std::min(in + n, slice.end);
      if (begin < end) f(at + (begin - in) - piece.begin.value, begin, end - begin);
    });
  }

  /// Sorts a list of matrices by descending shape, so that equal shapes are neighbours.
  template <class List>
  void sort_by_shape(List& list) const {
    std::stable_sort(list.begin(), list.end(), [&](int a, int b) { return shape_key(a) > shape_key(b); });
  }
  std::tuple<int64_t, int64_t, int, int> shape_key(int i) const {
    const LogicalMatrix& m = matrix(i);
    return {m.rows, m.cols, m.tensor_dim, m.tensor_parts};
  }
};

}  // namespace sherd
