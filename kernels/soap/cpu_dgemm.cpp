#include <sherd/kernels/soap/cpu_dgemm.h>

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace sherd::cpu {
namespace {

// A tile of C is 12 vectors in registers. A block of A is packed for the second-level cache, a panel of B for the first.
constexpr int kTileRows = 6, kTileCols = 8, kLanes = 4;
constexpr int64_t kBlockRows = 96, kDepth = 256;
/// Least multiplications of a thread: enough to pay for waking it.
constexpr int64_t kThreadGrain = int64_t{1} << 18;

using DoubleVector = double __attribute__((vector_size(kLanes * sizeof(double))));

/// Calls f(integral_constant) for each: indices of registers must be constants.
template <int... I, class F>
void unrolled(std::integer_sequence<int, I...>, F f) {
  (f(std::integral_constant<int, I>{}), ...);
}

/// tile [6][8] = the sum over p of column p of a times row p of b, both packed.
void multiply_tile(int64_t depth, const double* a, const double* b, double* tile) {
  constexpr std::make_integer_sequence<int, kTileRows> rows;
  DoubleVector sums[kTileRows][2] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += kTileCols) {
    DoubleVector left, right;
    std::memcpy(&left, b, sizeof left);
    std::memcpy(&right, b + kLanes, sizeof right);
    unrolled(rows, [&](auto i) {
      const DoubleVector x = {a[i], a[i], a[i], a[i]};
      sums[i][0] += x * left;
      sums[i][1] += x * right;
    });
  }
  unrolled(rows, [&](auto i) {
    std::memcpy(tile + i * kTileCols, &sums[i][0], sizeof(DoubleVector));
    std::memcpy(tile + i * kTileCols + kLanes, &sums[i][1], sizeof(DoubleVector));
  });
}

/// to[p][i] = element (i, p) for i < count, and zero up to `Width`.
template <int Width>
void pack(const double* from, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
          double* to) {
  if (count >= Width) {
    for (int64_t p = 0; p < depth; ++p)
      for (int i = 0; i < Width; ++i) to[p * Width + i] = from[i * stride + p * depth_stride];
    return;
  }
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t i = 0; i < Width; ++i)
      to[p * Width + i] = i < count ? from[i * stride + p * depth_stride] : 0;
}

void store_tile(const double* tile, int64_t rows, int64_t cols, double alpha, double beta, double* c,
                int64_t ldc) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const double sum = alpha * tile[i * kTileCols + j];
      c[i * ldc + j] = beta == 0 ? sum : sum + beta * c[i * ldc + j];
    }
}

/// The product on one thread.
void multiply_rows(int64_t m, int64_t n, int64_t k, double alpha, const DoubleView& a, const DoubleView& b,
                   double beta, double* c, int64_t ldc) {
  alignas(64) double block[kBlockRows * kDepth], panel[kTileCols * kDepth], tile[kTileRows * kTileCols];
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    const double kept = p == 0 ? beta : 1;
    for (int64_t i = 0; i < m; i += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, m - i);
      for (int64_t r = 0; r < rows; r += kTileRows)
        pack<kTileRows>(a.data + (i + r) * a.rows + p * a.cols, a.rows, a.cols, rows - r, depth,
                        block + r * depth);
      for (int64_t j = 0; j < n; j += kTileCols) {
        pack<kTileCols>(b.data + p * b.rows + j * b.cols, b.cols, b.rows, n - j, depth, panel);
        for (int64_t r = 0; r < rows; r += kTileRows) {
          multiply_tile(depth, block + r * depth, panel, tile);
          store_tile(tile, std::min<int64_t>(kTileRows, rows - r), std::min<int64_t>(kTileCols, n - j), alpha,
                     kept, c + (i + r) * ldc + j, ldc);
        }
      }
    }
  }
}

}  // namespace

void dgemm(int64_t m, int64_t n, int64_t k, double alpha, const DoubleView& a, const DoubleView& b,
           double beta, double* c, int64_t ldc) {
  const int64_t tiles = (m + kTileRows - 1) / kTileRows;
  const int team = omp_get_max_threads();
  const auto threads = static_cast<int>(std::min<int64_t>({team, tiles, m * n * k / kThreadGrain}));
  if (threads <= 1) return multiply_rows(m, n, k, alpha, a, b, beta, c, ldc);
#pragma omp parallel num_threads(team)  // all of them: see parallel_for()
  {
    const int64_t t = omp_get_thread_num(), count = std::min(threads, omp_get_num_threads());
    const int64_t begin = std::min(m, tiles * t / count * kTileRows),
                  end = t < count ? std::min(m, tiles * (t + 1) / count * kTileRows) : begin;
    const DoubleView mine{a.data + begin * a.rows, a.rows, a.cols};
    if (begin < end) multiply_rows(end - begin, n, k, alpha, mine, b, beta, c + begin * ldc, ldc);
  }
}

}  // namespace sherd::cpu
