#include "products.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/kernels/gemm/cpu_bf16.h>
#include <sherd/kernels/gemm/cpu_sgemm.h>

namespace sherd::cpu {
namespace {

constexpr int64_t kTile = 16;

template <class T>
float rounded(float v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    return float(T(v));
  }
}

/// What a product multiplies: matrices in f32, or their copies in bf16.
struct Operands {
  Block a, b;
  const bf16 *a16 = nullptr, *b16 = nullptr;
  int64_t lda16 = 0, ldb16 = 0;

  /// c[m, n] = rows of a from `row` times op(b) from column `column`, + beta * c. On the calling thread.
  void multiply(bool trans_b, int64_t m, int64_t n, int64_t k, int64_t row, int64_t column, float beta,
                float* c, int64_t ldc) const {
    if (a16 != nullptr) {
      Bf16Product(
          {.trans_b = trans_b, .m = m, .n = n, .k = k, .lda = lda16, .ldb = ldb16, .ldc = ldc, .beta = beta})
          .run(a16 + row * lda16, b16 + column, c);
    } else {
      sgemm(false, trans_b, m, n, k, 1, a.data + row * a.ld, a.ld, b.data + column, b.ld, beta, c, ldc);
    }
  }
};

void narrow(const ExecutionContext& ctx, int64_t rows, int64_t cols, Block from, bf16* to) {
  parallel_for(ctx, rows, row_grain(cols), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) store(to[i * cols + j], from.data[i * from.ld + j]);
  });
}

/// a [m, k]; b [k, n], or [n, k] when it is transposed, which may be a.
Operands operands(const ExecutionContext& ctx, int64_t m, int64_t n, int64_t k, Block a, Block b,
                  bool trans_b, bf16* room) {
  Operands o{.a = a, .b = b};
  if (room == nullptr) return o;
  const int64_t b_rows = trans_b ? n : k, b_cols = trans_b ? k : n;
  o.a16 = o.b16 = room;
  o.lda16 = k;
  o.ldb16 = b_cols;
  narrow(ctx, m, k, a, room);
  if (b.data == a.data) return o;
  o.b16 = room + m * k;
  narrow(ctx, b_rows, b_cols, b, room + m * k);
  return o;
}

/// Rows per panel. The work beyond half is height/n of it; low panels make sgemm slower (measured on Zen 3), and bf16 products,
/// which copy the other operand into their own layout for each panel, slower still.
int64_t panel_height(int64_t n, bool bf16) {
  if (bf16) return n <= 192 ? n : 128;
  return n <= 192 ? 32 : n < 512 ? 48 : 64;
}

/// Applies the epilogue to rows [i0, i1) up to the diagonal and mirrors them.
template <class T>
void finish_panel(Block c, int64_t i0, int64_t i1, const Epilogue& e) {
  const float alpha = e.alpha, beta = e.beta;
  float tile[kTile][kTile];
  for (int64_t ii = i0; ii < i1; ii += kTile) {
    const int64_t rows = std::min(kTile, i1 - ii);
    for (int64_t jj = 0; jj <= ii; jj += kTile) {
      const int64_t cols = jj == ii ? rows : kTile;
      for (int64_t i = 0; i < rows; ++i) {
        const float* from = c.data + (ii + i) * c.ld + jj;
        for (int64_t j = 0; j < cols; ++j) tile[i][j] = alpha * from[j];
        if (beta != 0) {
          const float* add = e.addend.data + (ii + i) * e.addend.ld + jj;
          for (int64_t j = 0; j < cols; ++j) tile[i][j] += beta * add[j];
        }
        for (int64_t j = 0; j < cols; ++j) tile[i][j] = rounded<T>(tile[i][j]);
      }
      if (jj == ii) {
        for (int64_t i = 0; i < rows; ++i) {
          tile[i][i] += e.diagonal;
          for (int64_t j = 0; j < i; ++j) tile[j][i] = tile[i][j];
        }
      }
      for (int64_t i = 0; i < rows; ++i) std::copy_n(tile[i], cols, c.data + (ii + i) * c.ld + jj);
      if (jj == ii) continue;
      if (rows == kTile) {
        for (int64_t j = 0; j < kTile; ++j)
          for (int64_t i = 0; i < kTile; ++i) c.data[(jj + j) * c.ld + ii + i] = tile[i][j];
      } else {
        for (int64_t j = 0; j < kTile; ++j)
          for (int64_t i = 0; i < rows; ++i) c.data[(jj + j) * c.ld + ii + i] = tile[i][j];
      }
    }
  }
}

/// About n/8, so that up to eight threads find work, but large enough for sgemm to run well.
int64_t tile_size(int64_t n) { return std::max<int64_t>(128, ((n + 7) / 8 + 15) / 16 * 16); }

template <class T>
void copy_tile(const float* from, int64_t ld_from, int64_t rows, int64_t cols, double factor, float* to,
               int64_t ld_to) {
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j)
      to[i * ld_to + j] = rounded<T>(static_cast<float>(factor * static_cast<double>(from[i * ld_from + j])));
}

template <class T>
void transpose_tile(const float* from, int64_t ld_from, int64_t rows, int64_t cols, double factor, float* to,
                    int64_t ld_to) {
  float tile[kTile][kTile];
  for (int64_t ii = 0; ii < rows; ii += kTile)
    for (int64_t jj = 0; jj < cols; jj += kTile) {
      const int64_t r = std::min(kTile, rows - ii), c = std::min(kTile, cols - jj);
      copy_tile<T>(from + ii * ld_from + jj, ld_from, r, c, factor, tile[0], kTile);
      for (int64_t j = 0; j < c; ++j)
        for (int64_t i = 0; i < r; ++i) to[(jj + j) * ld_to + ii + i] = tile[i][j];
    }
}

}  // namespace

int64_t padded_stride(int64_t cols) {
  const int64_t stride = (cols + 15) / 16 * 16;
  return stride % 256 == 0 ? stride + 16 : stride;
}

void symmetric_product(const ExecutionContext& ctx, int64_t n, int64_t k, Block a, Block b, bool trans_b,
                       const Epilogue& epilogue, Block c) {
  const int64_t height = panel_height(n, epilogue.room != nullptr), panels = (n + height - 1) / height;
  const Operands x = operands(ctx, n, n, k, a, b, trans_b, epilogue.room);
  with_payload(epilogue.working, [&](auto type) {
    for_tasks(ctx, panels, [&](int64_t task) {
      const int64_t i0 = (panels - 1 - task) * height, i1 = std::min(n, i0 + height);  // largest first
      x.multiply(trans_b, i1 - i0, i1, k, i0, 0, 0, c.data + i0 * c.ld, c.ld);
      finish_panel<decltype(type)>(c, i0, i1, epilogue);
    });
  });
}

void product(const ExecutionContext& ctx, int64_t m, int64_t n, int64_t k, Block a, Block b,
             const Epilogue& epilogue, Block c) {
  const bool by_rows = m > 2 * n;
  const int64_t length = by_rows ? m : n, size = tile_size(length);
  const Operands x = operands(ctx, m, n, k, a, b, false, epilogue.room);
  with_payload(epilogue.working, [&](auto type) {
    for_tasks(ctx, (length + size - 1) / size, [&](int64_t task) {
      const int64_t begin = task * size, count = std::min(size, length - begin);
      const int64_t rows = by_rows ? count : m, cols = by_rows ? n : count;
      auto part = [&](Block matrix) { return matrix.data + (by_rows ? begin * matrix.ld : begin); };
      float* to = part(c);
      if (epilogue.beta != 0)
        for (int64_t i = 0; i < rows; ++i)
          std::copy_n(part(epilogue.addend) + i * epilogue.addend.ld, cols, to + i * c.ld);
      x.multiply(false, rows, cols, k, by_rows ? begin : 0, by_rows ? 0 : begin, epilogue.beta, to, c.ld);
      if (epilogue.working != DType::f32) copy_tile<decltype(type)>(to, c.ld, rows, cols, 1, to, c.ld);
    });
  });
}

void scaled_copy(const ExecutionContext& ctx, int64_t rows, int64_t cols, Block from, double factor,
                 bool transposed, DType working, Block to) {
  constexpr int64_t kRows = 32;
  with_payload(working, [&](auto type) {
    using T = decltype(type);
    for_tasks(ctx, (rows + kRows - 1) / kRows, [&](int64_t task) {
      const int64_t i0 = task * kRows, count = std::min(kRows, rows - i0);
      const float* source = from.data + i0 * from.ld;
      if (transposed) {
        transpose_tile<T>(source, from.ld, count, cols, factor, to.data + i0, to.ld);
      } else {
        copy_tile<T>(source, from.ld, count, cols, factor, to.data + i0 * to.ld, to.ld);
      }
    });
  });
}

double sum_of_squares(const ExecutionContext& ctx, const float* x, int64_t count) {
  constexpr int64_t kPart = 65536;
  const int64_t parts = (count + kPart - 1) / kPart;
  std::vector<double> sums(static_cast<size_t>(parts));
  for_tasks(ctx, parts, [&](int64_t task) {
    const float* from = x + task * kPart;
    const int64_t size = std::min(kPart, count - task * kPart);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    sums[static_cast<size_t>(task)] = sum;
  });
  double total = 0;
  for (double s : sums) total += s;
  return total;
}

}  // namespace sherd::cpu
