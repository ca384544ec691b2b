// Exact polar factor. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/orthogonalize/orthogonalize.h>

namespace sherd::cuda {

/// orthogonalize() by cuSOLVER's singular values in double. Directions whose singular value is below
/// max(rows, cols) * 2^-23 * the largest are left out. Where cuSOLVER does not converge the result is zero
/// and the status not_finite. cuSOLVER needs the host between launches: not for CUDA graphs.
void polar_factor(ExecutionContext&, const OrthogonalizeArgs&);

}  // namespace sherd::cuda
