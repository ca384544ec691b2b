// Exact polar factor. Private to CPU kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/stream.h>

namespace sherd::cpu {

/// out = UV^T of in = U S V^T, row-major [rows, cols], neither empty nor zero, all finite; computed in
/// double. Directions whose singular value is below max(rows, cols) * 2^-23 * the largest are left out.
/// @throws Error when LAPACK does not converge, NotSupported when the sizes pass its integers.
void polar_factor(ExecutionContext& ctx, int64_t rows, int64_t cols, const float* in, float* out);
/// Returns the scratch bytes that it requests.
int64_t polar_scratch(int64_t rows, int64_t cols);

}  // namespace sherd::cpu
