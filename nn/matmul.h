// Products of values, batched.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

struct MatmulOptions {
  bool transpose_a = false;  ///< the last two dimensions of a are [k, m] instead of [m, k]
  bool transpose_b = false;  ///< those of b are [n, k] instead of [k, n]
};

/// Returns a b for each matrix of the leading dimensions, which broadcast as in NumPy: a [..., m, k], b [..., k, n],
/// the result [..., m, n]; one dtype, f32 or bf16, sums in fp32. One product for each matrix, or a single one where b
/// is a matrix and a is not transposed. Saves both. Weights that are parameters belong in linear(), which copies none.
/// @throws ShapeMismatch for values of fewer than two dimensions, and for shapes that do not fit.
Var matmul(const Var& a, const Var& b, const MatmulOptions& options = {});

}  // namespace sherd::nn
