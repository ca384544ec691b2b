// Columns of a matrix: an operand or a result of an operation, with other columns around it.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/tensor.h>

namespace sherd::ops {

/// Columns [begin, begin + count) of a dense matrix; a tensor is all of its columns. `matrix` keeps its memory alive.
struct Columns {
  Columns(const Tensor& all)
      : matrix(all), begin(0), count(all.defined() && all.dim() == 2 ? all.size(1) : 0) {}
  Columns(const Tensor& all, int64_t from, int64_t columns) : matrix(all), begin(from), count(columns) {}
  Tensor matrix;
  int64_t begin, count;
};

}  // namespace sherd::ops
