#include <sherd/nn/kernels/reduction/reduction.h>

#include <algorithm>
#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

constexpr int64_t kRun = 512;    // elements of a row whose sum is fp32
constexpr int64_t kRowRun = 32;  // rows whose sum by columns is fp32
// Columns of a task: many, so that rows are read in long pieces, but fewer where threads would have no task.
constexpr int64_t kReducedColumns = 1024, kFewReducedColumns = 256;
constexpr int64_t kRowsAhead = 8;  // whose cache lines, of 64 bytes, are requested

/// Reduces `n` contiguous elements.
template <Reduction kOp, class T>
double reduce_row(const T* x, int64_t n) {
  if constexpr (kOp == Reduction::sum) {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += kRun) {
      const int64_t end = std::min(n, begin + kRun);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += float(x[i]);
      total += sum;
    }
    return total;
  } else {
    float most = -std::numeric_limits<float>::infinity();
    int32_t bad = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
    for (int64_t i = 0; i < n; ++i) {
      const float v = float(x[i]);
      most = v > most ? v : most;
      bad |= v != v ? 1 : 0;
    }
    return bad != 0 ? std::numeric_limits<float>::quiet_NaN() : most;
  }
}

/// Reduces `width` columns of `n` rows that are `stride` elements apart.
template <Reduction kOp, class T>
void reduce_columns(const T* x, int64_t n, int64_t stride, int64_t width, double* total) {
  float part[kReducedColumns];
  std::fill_n(total, width, kOp == Reduction::sum ? 0.0 : double(float(x[0])));
  if constexpr (kOp == Reduction::max)
    for (int64_t c = 0; c < width; ++c) part[c] = float(x[c]);
  for (int64_t begin = 0; begin < n; begin += kRowRun) {
    if constexpr (kOp == Reduction::sum) std::fill_n(part, width, 0.0f);
    for (int64_t r = begin; r < std::min(n, begin + kRowRun); ++r) {
      const T* row = x + r * stride;
      if (r + kRowsAhead < n)
        for (int64_t c = 0; c < width; c += 64 / int64_t{sizeof(T)})
          __builtin_prefetch(row + kRowsAhead * stride + c, 0, 2);
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const float v = float(row[c]);
        part[c] = kOp == Reduction::sum ? part[c] + v : v > part[c] || v != v ? v : part[c];
      }
    }
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) total[c] = kOp == Reduction::sum ? total[c] + part[c] : part[c];
  }
}

template <Reduction kOp, class T, class Out>
void reduce_tasks(const ReductionArgs& a, int64_t columns, int64_t begin, int64_t end) {
  const int64_t blocks = (a.inner + columns - 1) / columns, chunks = a.chunks();
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task % blocks * columns, k = task / blocks % chunks, o = task / blocks / chunks;
    const int64_t from = k * a.chunk, n = std::min(a.n - from, a.chunk);
    const T* x = a.x.as<T>() + (o * a.n + from) * a.inner + first;
    Out* out = a.out.as<Out>() + (o * chunks + k) * a.inner + first;
    double total[kReducedColumns];
    const int64_t width = std::min(a.inner - first, columns);
    if (a.inner == 1)
      total[0] = reduce_row<kOp>(x, n);
    else
      reduce_columns<kOp>(x, n, a.inner, width, total);
    for (int64_t c = 0; c < width; ++c) store(out[c], static_cast<float>(a.factor * total[c]));
  }
}

void reduce(ExecutionContext& ctx, const ReductionArgs& a) {
  const auto tasks_of = [&](int64_t columns) {
    return a.outer * a.chunks() * ((a.inner + columns - 1) / columns);
  };
  int64_t columns = kReducedColumns;
  while (columns > kFewReducedColumns && tasks_of(columns) < 2 * ctx.threads) columns /= 2;
  const int64_t tasks = tasks_of(columns), width = std::min(a.inner, columns);
  const auto run = [&]<Reduction kOp>(std::integral_constant<Reduction, kOp>) {
    with_activation(a.x.dtype, [&]<class T>(T) {
      with_activation(a.out.dtype, [&]<class Out>(Out) {
        parallel_for(ctx, tasks, row_grain(a.chunk * width),
                     [=](int64_t begin, int64_t end) { reduce_tasks<kOp, T, Out>(a, columns, begin, end); });
      });
    });
  };
  if (a.op == Reduction::sum)
    run(std::integral_constant<Reduction, Reduction::sum>{});
  else
    run(std::integral_constant<Reduction, Reduction::max>{});
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const ReductionKernels* ReductionKernels::cpu() {
  static constexpr ReductionKernels table{.reduce = cpu::reduce};
  return &table;
}

}  // namespace sherd
