// The f64 matrix product of SOAP's step. Private to CPU kernels.
#pragma once

#include <cstdint>

namespace sherd::cpu {

/// A matrix in memory, row-major or transposed: element (i, j) is at data[i * rows + j * cols].
struct DoubleView {
  const double* data;
  int64_t rows, cols;  // strides
};

/// C[m,n] = alpha A B + beta C with A [m,k] and B [k,n]; C is row-major with rows `ldc` apart and overlaps neither. Uses the
/// calling thread's OpenMP threads. An element's bits depend on k alone: not on m, n, its place or the number of threads.
/// LAPACK's own product is many times slower where the reference BLAS is installed, and oneDNN has none in f64.
void dgemm(int64_t m, int64_t n, int64_t k, double alpha, const DoubleView& a, const DoubleView& b,
           double beta, double* c, int64_t ldc);

}  // namespace sherd::cpu
