// Matrix products for the orthogonalizers: symmetric ones at half the work. Bits depend on the sizes alone.
// Private to CPU kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::cpu {

/// A row-major matrix somewhere in memory: elements, and elements from row to row. T is float, or bf16 on processors with
/// features().bf16_products: products of such matrices have sums in f32 and are rounded once.
template <class T>
struct Block {
  T* data = nullptr;
  int64_t ld = 0;
};

/// Row distance for scratch matrices of `cols` columns: whole vectors, and never a multiple of 1 KiB, which
/// would put a column's elements into few cache sets.
template <class T>
int64_t padded_stride(int64_t cols) {
  constexpr int64_t kVector = 64 / sizeof(T), kKibibyte = 1024 / sizeof(T);
  const int64_t stride = (cols + kVector - 1) / kVector * kVector;
  return stride % kKibibyte == 0 ? stride + kVector : stride;
}

/// Scratch memory of products of bf16: x x^T, [m, m] by [m, m], and [m, m] by x, for x [m, n].
template <class T>
struct ProductScratch {
  float* sums = nullptr;  // sum_elements(m, n)
  T* packed = nullptr;    // packed_elements(m, n)
  static int64_t sum_elements(int64_t m, int64_t n);
  static int64_t packed_elements(int64_t m, int64_t n);
};

/// Operation on the elements of a product: round(alpha * product + beta * addend), then + diagonal. working
/// names the type that values are rounded to (and, in a Block of float, kept as f32); diagonal is for f32
/// only.
template <class T>
struct Epilogue {
  float alpha = 1, beta = 0;
  Block<T> addend{};  // read when beta != 0; never the result itself
  float diagonal = 0;
  DType working = DType::f32;
  ProductScratch<T> scratch{};  // for T = bf16
};

/// c[n,n] = a[n,k] op(b), known to be symmetric, as products of commuting symmetric matrices and a a^T are.
/// Without trans_b, b itself is symmetric to the bit. Panels of rows are computed up to the diagonal and mirrored: half the
/// work of gemm, result symmetric to the bit. c overlaps no operand. n may be 0, and k in f32.
template <class T>
void symmetric_product(const ExecutionContext& ctx, int64_t n, int64_t k, Block<T> a, Block<T> b,
                       bool trans_b, const Epilogue<T>& epilogue, Block<T> c);

/// c[m,n] = a[m,k] b[k,n] with an epilogue of alpha 1 and no diagonal, in tiles of columns (or of rows, where
/// those are many more).
template <class T>
void product(const ExecutionContext& ctx, int64_t m, int64_t n, int64_t k, Block<T> a, Block<T> b,
             const Epilogue<T>& epilogue, Block<T> c);

/// to[rows,cols] = factor * from, or (transposed) to[cols,rows] = factor * from^T, for from[rows,cols]. The
/// product with the factor is taken in double and rounded to `working`.
template <class From, class To>
void scaled_copy(const ExecutionContext& ctx, int64_t rows, int64_t cols, Block<From> from, double factor,
                 bool transposed, DType working, Block<To> to);

/// Sum of squares in double of `count` elements, in an order that depends on count alone. Not finite when an
/// element is not; 0 only when all are.
double sum_of_squares(const ExecutionContext& ctx, const float* x, int64_t count);

}  // namespace sherd::cpu
