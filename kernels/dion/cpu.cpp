#include <sherd/kernels/dion/dion.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/segments.h>

namespace sherd::cpu {
namespace {

// Eight sums in a fixed order: the bits of a norm depend on its row alone.
double dion_norm(const float* x, int64_t count) {
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += static_cast<double>(std::abs(x[i + k]));
  for (int64_t k = 0; i < count; ++i, ++k) sums[k] += static_cast<double>(std::abs(x[i]));
  const double sum = std::accumulate(sums, sums + kLanes, 0.0);
  return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
}

void dion_norms(ExecutionContext& ctx, const DionNormsArgs& a) {
  parallel_for(ctx, a.rows, row_grain(a.cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) a.norms[r] = dion_norm(a.in + r * a.cols, a.cols);
  });
}

void dion_choose(ExecutionContext&, const DionChooseArgs& a) {
  std::vector<int32_t> order(static_cast<size_t>(a.rows));
  for (int64_t b = 0; b < a.batch; ++b) {
    const double* norms = a.norms + b * a.rows;
    int32_t* slots = a.slots + b * a.rows;
    std::iota(order.begin(), order.end(), 0);
    const auto last = order.begin() + a.kept;
    if (a.kept < a.rows)
      std::nth_element(order.begin(), last, order.end(), [&](int32_t x, int32_t y) {
        return norms[x] > norms[y] || (norms[x] == norms[y] && x < y);
      });
    std::fill_n(slots, a.rows, -1);
    std::sort(order.begin(), last);
    int32_t slot = 0;
    for (auto row = order.begin(); row != last; ++row) slots[*row] = slot++;
  }
}

void dion_take(ExecutionContext& ctx, const DionRowsArgs& a) {
  parallel_for(ctx, a.batch * a.rows, row_grain(a.cols), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      if (a.slots[row] >= 0)
        std::copy_n(a.all + row * a.cols, a.cols, a.chosen + (row / a.rows * a.kept + a.slots[row]) * a.cols);
  });
}

void dion_put(ExecutionContext& ctx, const DionRowsArgs& a) {
  parallel_for(ctx, a.batch * a.rows, row_grain(a.cols), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = a.all + row * a.cols;
      if (a.slots[row] < 0)
        std::fill_n(to, a.cols, 0.0f);
      else
        std::copy_n(a.chosen + (row / a.rows * a.kept + a.slots[row]) * a.cols, a.cols, to);
    }
  });
}

void dion_keep(ExecutionContext& ctx, const DionKeepArgs& a) {
  if (a.skip && *a.skip != 0) return;
  with_payload(a.results.dtype, [&](auto type) {
    const auto* results = a.results.as<decltype(type)>();
    for_segments(ctx, a.segments, [=, factor = a.factor](const DionSegment& s, int64_t b, int64_t e) {
#pragma omp simd
      for (int64_t i = b; i < e; ++i)
        s.buffer[i] = float(results[s.at + i]) == 0 ? s.buffer[i] * factor : s.buffer[i];
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const DionKernels* DionKernels::cpu() {
  static constexpr DionKernels table{
      .norms = cpu::dion_norms,
      .choose = cpu::dion_choose,
      .take = cpu::dion_take,
      .put = cpu::dion_put,
      .keep = cpu::dion_keep,
  };
  return &table;
}

}  // namespace sherd
