// Refinement of computed matrices before they update the weights, for an optimizer on top of another.
#pragma once

#include <functional>
#include <span>

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>
#include <sherd/optim/whole/logical_matrix.h>

namespace sherd {

/// Consecutive elements of a matrix that this rank updates.
struct MatrixPiece {
  size_t item = 0;  // index of the parameter among the optimizer's items
  int matrix = 0;   // index in MatrixResults::matrices
  int64_t first =
      0;  // element of the matrix, row-major; of this rank's part where tensor parallelism cuts it
  int64_t local = 0;  // element of the parameter's piece on this rank (Parameter::shard())
  int64_t at = 0;     // element of MatrixResults::values
  int64_t count = 0;
  /// Noise by elements of the matrix, for state in bf16.
  Noise noise = {};
};

/// Computed matrices that came together, as far as this rank updates them: their elements have been
/// sent to the ranks that keep them, whatever the plan's mode, rounded to MomentumOptions::payload.
struct MatrixResults {
  const Tensor& values;  // f32; what a refinement leaves there is what updates the weights
  std::span<const LogicalMatrix> matrices;
  /// Indices of the matrices that came, in the same order on every rank that sum() adds over. This rank may
  /// have no piece of some of them.
  std::span<const int> present;
  std::span<const MatrixPiece> pieces;
  /// This rank's place along LogicalMatrix::tensor_dim; all matrices present have one, or none has.
  int tensor_rank = 0;
  /// Queues the sum of an i64 tensor on the compute stream, in place, over the ranks that together have every
  /// element of the matrices present exactly once. One small collective; none where this rank has all of
  /// them. Integers, since their sums do not show how the matrices are cut.
  std::function<void(const Tensor&)> sum;
};

/// Refinement. Calls are made one after the other. Every rank of a team makes the calls for matrices that
/// several ranks keep in the same order.
class MatrixRefinement {
 public:
  virtual ~MatrixRefinement() = default;
  /// Queues its work on `compute`, between the arrival of the results and
  ///   w = decay * w - lr * value,
  /// which the optimizer then applies: without the rule's scale, which is the refinement's to choose. `skip`
  /// as in UpdateRule::step(): other than 0, state kept between steps keeps its bits.
  virtual void refine(Stream& compute, const MatrixResults& results, const Tensor& skip) = 0;
};

}  // namespace sherd
