// Newton-Schulz in both forms on batches of normalised matrices. Private to CUDA kernels.
#pragma once

#include <span>

#include <sherd/kernels/gemm/cuda_matrices.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

namespace sherd::cuda {

/// Squares that the Gram iteration works in; r holds R at the start. All of the working type.
struct GramSquares {
  Matrices r, z, rz, q, next;
  static GramSquares of(Carver& carver, DType working, int64_t batch, int64_t n);
};

/// Q of the given steps on R, which is overwritten. Returns where Q is.
///   Z = bR + cR^2, Q <- Q(Z + aI), R <- (Z + aI)R(Z + aI)
/// with `a` carried through the products' addends, so that Z alone is rounded. Symmetric products only: 1 for
/// the first step, 2 for the last, 4 for others (3 for the first of several).
Matrices gram_polynomial(ExecutionContext&, GramSquares squares, std::span<const Coefficients> steps);

/// Memory of the iteration of whole matrices: x holds the normalised matrices [rows, cols].
struct Iteration {
  Matrices x, y;
  GramSquares squares;  // the standard form uses r and z alone
  static Iteration of(Carver& carver, const OrthogonalizeOptions& options, int64_t batch, int64_t rows,
                      int64_t cols);
};

/// Runs all steps of the options. Returns the place of the result. Tall matrices are iterated without a
/// transpose: R = x^T x and x <- xQ where wide ones have R = x x^T and x <- Qx.
Matrices newton_schulz(ExecutionContext&, Iteration iteration, const OrthogonalizeOptions& options);

}  // namespace sherd::cuda
