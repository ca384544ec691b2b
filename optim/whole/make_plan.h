// Planning of whole matrices.
#pragma once

#include <span>
#include <string>

#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/matrix_work.h>
#include <sherd/optim/whole/momentum_options.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

/// Returns the plan with the shortest time, of all replicas apart or sharing the work.
/// @param options without momentum, nesterov, decay, tensor and transient_bytes, which plans do not read.
/// @param cells world of every matrix's storage layout; `replicas` groups of ranks hold the same cells.
///
/// A matrix that is stored on one rank stays there. The others are assigned to owners by LPT: largest cost
/// first, to the rank with the least load so far (local work counted, every rank is a candidate, ties to the
/// lowest). A rank that holds at least its share of the matrix is preferred while that keeps the balance
/// within 5 % of the bound. `automatic` assigns local matrices, too, where they alone break the balance,
/// spreads owners over replicas where that is faster, and uses gram only if allowed and faster.
/// @throws InvalidArgument naming all matrices for which a forced mode is not possible.
[[nodiscard]] MatrixPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                                   const MatrixWork& work, const MomentumOptions& options);

}  // namespace sherd
