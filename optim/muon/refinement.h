// Refinement of orthogonalized matrices before they update the weights, for optimizers on top of Muon's plan.
#pragma once

#include <functional>
#include <span>

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/optim/whole/logical_matrix.h>

namespace sherd {

/// Consecutive elements of a matrix that this rank updates.
struct MuonPiece {
  size_t item = 0;  // index of the parameter among Muon's items
  int matrix = 0;   // index in MuonResults::matrices
  int64_t first =
      0;  // element of the matrix, row-major; of this rank's part where tensor parallelism cuts it
  int64_t local = 0;  // element of the parameter's piece on this rank (Parameter::shard())
  int64_t at = 0;     // element of MuonResults::values
  int64_t count = 0;
};

/// Orthogonalized matrices that came together, as far as this rank updates them: their elements have been
/// sent to the ranks that keep them, whatever the plan's mode, rounded to MuonOptions::payload.
struct MuonResults {
  const Tensor& values;  // f32; what a refinement leaves there is what updates the weights
  std::span<const LogicalMatrix> matrices;
  /// Of them, those that came, in the same order on every rank that sum() adds over. No piece of some may be
  /// here.
  std::span<const int> present;
  std::span<const MuonPiece> pieces;
  /// This rank's place along LogicalMatrix::tensor_dim; all matrices present have one, or none has.
  int tensor_rank = 0;
  /// Queues the sum of an i64 tensor on the compute stream, in place, over the ranks that together have every
  /// element of the matrices present exactly once. One small collective; none where this rank has all of
  /// them. Integers, since their sums do not show how the matrices are cut.
  std::function<void(const Tensor&)> sum;
};

/// Refinement. Calls are made one after the other. Every rank of a team makes the calls for matrices that
/// several ranks keep in the same order.
class MuonRefinement {
 public:
  virtual ~MuonRefinement() = default;
  /// Queues its work on `compute`, between the arrival of the results and
  ///   w = decay * w - lr * value,
  /// which Muon then applies: without its scale (MuonOptions::scale and scale_factor), which is the
  /// refinement's to choose. `skip` as in UpdateRule::step(): other than 0, what is remembered from step to
  /// step stays, in bits.
  virtual void refine(Stream& compute, const MuonResults& results, const Tensor& skip) = 0;
};

}  // namespace sherd
