// Sequence parallelism: rows between the tensor-parallel regions of a model, split over the ranks.
//
// A region begins with a column-parallel layer and ends with a row-parallel one. The functions between
// regions (the residual stream, norms, dropout, the embedding's rows) treat each row by itself. With sequence
// parallelism each rank has some of the rows there and computes those alone: the sum that ends a region
// becomes a reduce-scatter of rows, and an all-gather of rows begins the next one. Together they move the
// bytes of that sum. (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
// 2022.)
#pragma once

#include <cstdint>

#include <sherd/nn/context_parallel.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn {

/// Distribution of one forward's rows between regions: all rows on every rank of `tp`, or a part on each
/// (TensorParallel::begin_of()). Plain data; its functions are collectives of `tp` on the compute stream,
/// forward and backward alike. Every rank calls them, with or without rows.
struct SequenceRows {
  TensorParallel tp{};
  int64_t count = 0;      // of all ranks together
  bool split = false;     // of no effect in a group of one
  SequenceSlice slice{};  // `count` are the rows of this rank's slices

  bool splits() const { return split && tp.size() > 1; }
  /// Returns the rows of a value between regions on this rank.
  int64_t here() const {
    return splits() ? tp.begin_of(count, tp.rank() + 1) - tp.begin_of(count, tp.rank()) : count;
  }
  /// The ranks over which gradients of parameters are summed that are whole on every rank and used between
  /// regions: each rank has those of its rows alone. A group of one where rows are whole.
  TensorParallel partial() const { return splits() ? tp : TensorParallel{}; }

  // These @throw ShapeMismatch, where rows are split, for a value of other rows than here() or, behind a
  // region, `count`.

  /// Returns x, a value between regions, as column-parallel layers take it: all rows. Backward sums the
  /// ranks' gradients.
  Var enter(const Var& x) const;
  /// The same twice, of one gather: `cut` as enter() gives it, and `whole` for layers that every rank
  /// computes whole, so that its gradient is the same on all ranks and is not summed.
  struct Entered {
    Var cut, whole;
  };
  Entered enter_both(const Var& x) const;
  /// The sum of all ranks' y [count, d], sharded by rows as between regions. y is the output of row-parallel
  /// layers that has no other consumer.
  Var leave(const Var& y) const;
};

}  // namespace sherd::nn
