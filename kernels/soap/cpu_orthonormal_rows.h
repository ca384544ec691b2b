// Orthonormal rows of a square matrix in f64. Private to CPU kernels.
#pragma once

#include <cstdint>

namespace sherd::cpu {

/// Replaces a [n, n] by Q of a = L Q, where L is lower triangular with a diagonal that is positive or zero. Blocked Householder
/// reflections (compact WY form of Schreiber and Van Loan 1989). `work` has n^2 + 97n. Bits do not
/// depend on the number of threads.
void orthonormal_rows(int64_t n, double* a, double* work);

}  // namespace sherd::cpu
