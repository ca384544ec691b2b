// Human-readable plan for whole matrices.
#pragma once

#include <span>
#include <string>

#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/matrix_work.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

/// Returns the modes with their number of matrices, and what each rank receives, sends and computes.
[[nodiscard]] std::string explain(const MatrixPlan& plan, const MatrixWork& work,
                                  std::span<const LogicalMatrix> matrices);

}  // namespace sherd
