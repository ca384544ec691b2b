// The fp32 matrix product under gemm, attention and Newton-Schulz. Private to CPU kernels.
#pragma once

#include <cstdint>

namespace sherd::cpu {

/// C[m,n] = alpha op(A) op(B) + beta C, row-major. Uses the calling thread's OpenMP threads, one when called
/// inside a parallel region. Sizes may be 0. @throws Error when the library refuses.
void sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
           int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace sherd::cpu
