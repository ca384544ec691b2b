// Factors of a matrix product. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/gemm/cuda_matrices.h>

namespace sherd::cuda {

struct Chip;

/// A factor, perhaps read as its transpose.
struct Factor {
  const Matrices& of;
  bool transposed = false;
  int64_t rows() const { return transposed ? of.cols : of.rows; }
  int64_t cols() const { return transposed ? of.rows : of.cols; }
};

/// c = alpha * product + beta * addend. The addend has c's type and is not c.
struct Terms {
  double alpha = 1, beta = 0;
  const Matrices* addend = nullptr;  // read when beta is not 0
};

}  // namespace sherd::cuda
