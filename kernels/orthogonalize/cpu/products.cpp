#include "products.h"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/features.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/kernels/device/cpu/transpose.h>
#include <sherd/kernels/gemm/cpu_bf16.h>
#include <sherd/kernels/gemm/cpu_panels.h>
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

/// c[m, n] = a op(b) + beta * c, on the calling thread.
template <class T, class Sum>
void multiply(bool trans_b, int64_t m, int64_t n, int64_t k, Block<T> a, Block<T> b, float beta,
              Block<Sum> c) {
  if constexpr (std::is_same_v<T, bf16>) {
    Bf16Product({.trans_b = trans_b,
                 .m = m,
                 .n = n,
                 .k = k,
                 .lda = a.ld,
                 .ldb = b.ld,
                 .ldc = c.ld,
                 .beta = beta,
                 .to = std::is_same_v<Sum, bf16> ? DType::bf16 : DType::f32})
        .run(a.data, b.data, c.data);
  } else {
    sgemm(false, trans_b, m, n, k, 1, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  }
}

/// c = a b for n columns of packed b from first_column on; c has whole panels of columns.
template <class T>
void multiply(int64_t m, int64_t n, Block<T> a, const Panels<T>& b, int64_t first_column, Block<float> c) {
  multiply(PanelProduct<T>{.m = m,
                           .n = whole_panels(n),
                           .steps = b.steps,
                           .a = {a.data, a.ld, kFold<T>},
                           .b = b,
                           .first_column = first_column,
                           .c = c.data,
                           .ldc = c.ld});
}

template <class T>
Block<T> part(Block<T> matrix, int64_t row, int64_t column) {
  return {matrix.data + row * matrix.ld + column, matrix.ld};
}

/// Returns whether products of bf16 use packed panels. oneDNN's AVX512-BF16 kernels copy an operand in every
/// call and are slower. Processors with AMX keep oneDNN's: panels have not been measured there. k is even: a
/// step takes two elements.
template <class T>
bool packs(int64_t k) {
  return std::is_same_v<T, bf16> && k % kFold<bf16> == 0 &&
         std::string_view(features().bf16_products) == "AVX512-BF16";
}

/// Rows per panel. The work beyond half is height/n of it. Packed operands serve panels of any height. Others make low panels
/// slower (measured on Zen 3 and 4), those of bf16 more, whose other operand is copied for each panel.
template <class T>
int64_t panel_height(int64_t n, int64_t k) {
  if (packs<T>(k)) return kPanel;
  if (std::is_same_v<T, bf16>) return n <= 192 ? n : 64;
  return n <= 192 ? 32 : n < 512 ? 48 : 64;
}

/// to = from, rounded to R in f32, or to bf16.
template <class R>
void round_tile(float* to, const float* from) {
#pragma omp simd
  for (int64_t i = 0; i < kTile * kTile; ++i) to[i] = rounded<R>(from[i]);
}
template <class R>
void round_tile(bf16* to, const float* from) {
  narrow(to, from, kTile * kTile);
}

/// Applies the epilogue to rows [i0, i1) of sums up to the diagonal; c has them and their mirror. sums may be c.
template <class R, class T>
void finish_panel(Block<float> sums, Block<T> c, int64_t i0, int64_t i1, const Epilogue<T>& e) {
  const float alpha = e.alpha, beta = e.beta;
  float values[kTile * kTile]{};
  T done[kTile * kTile];
  for (int64_t ii = i0; ii < i1; ii += kTile) {
    const int64_t rows = std::min(kTile, i1 - ii);
    for (int64_t jj = 0; jj <= ii; jj += kTile) {
      const int64_t cols = jj == ii ? rows : kTile;
      for (int64_t i = 0; i < rows; ++i) {
        const float* sum = sums.data + (ii + i) * sums.ld + jj;
        float* row = values + i * kTile;
        for (int64_t j = 0; j < cols; ++j) row[j] = alpha * sum[j];
        if (beta != 0) {
          const T* add = e.addend.data + (ii + i) * e.addend.ld + jj;
          for (int64_t j = 0; j < cols; ++j) row[j] += beta * float(add[j]);
        }
      }
      round_tile<R>(done, values);
      if (jj == ii) {
        for (int64_t i = 0; i < rows; ++i) {
          if constexpr (std::is_same_v<T, float>) done[i * kTile + i] += e.diagonal;
          for (int64_t j = 0; j < i; ++j) done[j * kTile + i] = done[i * kTile + j];
        }
      }
      for (int64_t i = 0; i < rows; ++i) std::copy_n(done + i * kTile, cols, c.data + (ii + i) * c.ld + jj);
      if (jj < ii) transpose(c.data + jj * c.ld + ii, c.ld, done, kTile, rows, kTile);
    }
  }
}

/// About n/8, so that up to eight threads find work, but large enough for sgemm to run well.
int64_t tile_size(int64_t n) { return std::max<int64_t>(128, ((n + 7) / 8 + 15) / 16 * 16); }

/// to = factor * from, rounded to R in f32, or to bf16.
template <class R, class From, class To>
void copy_tile(Block<From> from, int64_t rows, int64_t cols, double factor, Block<To> to) {
  for (int64_t i = 0; i < rows; ++i) {
    const From* const row = from.data + i * from.ld;
    const auto value = [=](int64_t j) { return static_cast<float>(factor * double(float(row[j]))); };
    if constexpr (std::is_same_v<To, float>)
      round_each(to.data + i * to.ld, cols, [=](int64_t j) { return rounded<R>(value(j)); });
    else
      round_each(to.data + i * to.ld, cols, value);
  }
}

template <class R, class From, class To>
void transpose_tile(Block<From> from, int64_t rows, int64_t cols, double factor, Block<To> to) {
  constexpr int64_t kWidth = 64;
  To tile[kTile * kWidth];
  for (int64_t jj = 0; jj < cols; jj += kWidth)
    for (int64_t ii = 0; ii < rows; ii += kTile) {
      const int64_t r = std::min(kTile, rows - ii), c = std::min(kWidth, cols - jj);
      copy_tile<R>(part(from, ii, jj), r, c, factor, Block<To>{tile, kWidth});
      transpose(to.data + jj * to.ld + ii, to.ld, tile, kWidth, r, c);
    }
}

/// Elements from row to row of the sums of an [n, n] matrix.
int64_t sum_stride(int64_t n) { return padded_stride<float>(whole_panels(n)); }

/// product() of bf16: each task packs its columns, and rounds 32 rows of sums at a time.
template <class T>
void packed_product(const ExecutionContext& ctx, int64_t m, int64_t n, int64_t k, Block<T> a, Block<T> b,
                    const Epilogue<T>& epilogue, Block<T> c) {
  const int64_t size = whole_panels(tile_size(n));
  const Panels<T> packed{epilogue.scratch.packed, k / kFold<T>};
  for_tasks(ctx, (n + size - 1) / size, [&](int64_t task) {
    const int64_t column = task * size, cols = std::min(size, n - column);
    pack_rows(Panels<T>{packed.at(0, column), packed.steps}, b.data + column, b.ld, k, cols);
    const Block<float> sums{epilogue.scratch.sums + column * std::min(m, kPanel), whole_panels(cols)};
    for (int64_t row = 0; row < m; row += kPanel) {
      const int64_t rows = std::min(kPanel, m - row);
      multiply(rows, cols, part(a, row, 0), packed, column, sums);
      for (int64_t i = 0; i < rows; ++i) {
        const float* const sum = sums.data + i * sums.ld;
        T* const to = c.data + (row + i) * c.ld + column;
        if (epilogue.beta != 0) {
          const T* const add = epilogue.addend.data + (row + i) * epilogue.addend.ld + column;
          round_each(to, cols, [&](int64_t j) { return sum[j] + epilogue.beta * float(add[j]); });
        } else {
          round_each(to, cols, [&](int64_t j) { return sum[j]; });
        }
      }
    }
  });
}

}  // namespace

template <class T>
int64_t ProductScratch<T>::sum_elements(int64_t m, int64_t n) {
  return std::max(m * sum_stride(m), packs<T>(m) ? std::min(m, kPanel) * whole_panels(n) : 0);
}

template <class T>
int64_t ProductScratch<T>::packed_elements(int64_t m, int64_t n) {
  const auto elements = [](int64_t k, int64_t columns) {
    return packs<T>(k) ? panel_elements<T>(k / kFold<T>, columns) : 0;
  };
  return std::max({elements(n, m), elements(m, m), elements(m, n)});
}

template struct ProductScratch<bf16>;

template <class T>
void symmetric_product(const ExecutionContext& ctx, int64_t n, int64_t k, Block<T> a, Block<T> b,
                       bool trans_b, const Epilogue<T>& epilogue, Block<T> c) {
  const int64_t height = panel_height<T>(n, k), panels = (n + height - 1) / height;
  Block<float> sums{epilogue.scratch.sums, sum_stride(n)};
  if constexpr (std::is_same_v<T, float>) sums = c;
  const Panels<T> packed{epilogue.scratch.packed, k / kFold<T>};
  if (packs<T>(k))
    for_tasks(ctx, panels, [&](int64_t task) {  // b^T, which is b where it is symmetric
      const int64_t row = task * height;
      pack_transposed(Panels<T>{packed.at(0, row), packed.steps}, b.data + row * b.ld, b.ld,
                      std::min(height, n - row), k);
    });
  with_payload(epilogue.working, [&](auto type) {
    for_tasks(ctx, panels, [&](int64_t task) {
      const int64_t i0 = (panels - 1 - task) * height, i1 = std::min(n, i0 + height);  // largest first
      const Block<T> rows = part(a, i0, 0);
      const Block<float> to = part(sums, i0, 0);
      if (packs<T>(k))
        multiply(i1 - i0, i1, rows, packed, 0, to);
      else
        multiply(trans_b, i1 - i0, i1, k, rows, b, 0, to);
      finish_panel<decltype(type)>(sums, c, i0, i1, epilogue);
    });
  });
}

template <class T>
void product(const ExecutionContext& ctx, int64_t m, int64_t n, int64_t k, Block<T> a, Block<T> b,
             const Epilogue<T>& epilogue, Block<T> c) {
  if (packs<T>(k)) return packed_product(ctx, m, n, k, a, b, epilogue, c);
  const bool by_rows = m > 2 * n;
  const int64_t length = by_rows ? m : n, size = tile_size(length);
  with_payload(epilogue.working, [&](auto type) {
    for_tasks(ctx, (length + size - 1) / size, [&](int64_t task) {
      const int64_t begin = task * size, count = std::min(size, length - begin);
      const int64_t row = by_rows ? begin : 0, column = by_rows ? 0 : begin;
      const int64_t rows = by_rows ? count : m, cols = by_rows ? n : count;
      const Block<T> to = part(c, row, column);
      if (epilogue.beta != 0) {
        const Block<T> addend = part(epilogue.addend, row, column);
        for (int64_t i = 0; i < rows; ++i)
          std::copy_n(addend.data + i * addend.ld, cols, to.data + i * to.ld);
      }
      multiply(false, rows, cols, k, part(a, row, 0), part(b, 0, column), epilogue.beta, to);
      if constexpr (std::is_same_v<T, float>)
        if (epilogue.working != DType::f32) copy_tile<decltype(type)>(to, rows, cols, 1, to);
    });
  });
}

template <class From, class To>
void scaled_copy(const ExecutionContext& ctx, int64_t rows, int64_t cols, Block<From> from, double factor,
                 bool transposed, DType working, Block<To> to) {
  constexpr int64_t kRows = 32;
  with_payload(working, [&](auto type) {
    using R = decltype(type);
    for_tasks(ctx, (rows + kRows - 1) / kRows, [&](int64_t task) {
      const int64_t i0 = task * kRows, count = std::min(kRows, rows - i0);
      if (transposed) {
        transpose_tile<R>(part(from, i0, 0), count, cols, factor, part(to, 0, i0));
      } else {
        copy_tile<R>(part(from, i0, 0), count, cols, factor, part(to, i0, 0));
      }
    });
  });
}

template void symmetric_product(const ExecutionContext&, int64_t, int64_t, Block<float>, Block<float>, bool,
                                const Epilogue<float>&, Block<float>);
template void symmetric_product(const ExecutionContext&, int64_t, int64_t, Block<bf16>, Block<bf16>, bool,
                                const Epilogue<bf16>&, Block<bf16>);
template void product(const ExecutionContext&, int64_t, int64_t, int64_t, Block<float>, Block<float>,
                      const Epilogue<float>&, Block<float>);
template void product(const ExecutionContext&, int64_t, int64_t, int64_t, Block<bf16>, Block<bf16>,
                      const Epilogue<bf16>&, Block<bf16>);
template void scaled_copy(const ExecutionContext&, int64_t, int64_t, Block<float>, double, bool, DType,
                          Block<float>);
template void scaled_copy(const ExecutionContext&, int64_t, int64_t, Block<float>, double, bool, DType,
                          Block<bf16>);
template void scaled_copy(const ExecutionContext&, int64_t, int64_t, Block<bf16>, double, bool, DType,
                          Block<float>);

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
