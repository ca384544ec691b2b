#include <sherd/kernels/normuon/normuon.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/rest/cpu_forms.h>

namespace sherd::cpu {
namespace {

/// Calls f(row of the records and results, first element of the segment, count) for the part of each row in a segment.
template <class F>
void for_rows(const ExecutionContext& ctx, const RowSegment& s, F f) {
  if (s.count == 0) return;
  const int64_t first = s.first / s.cols, last = (s.first + s.count - 1) / s.cols;
  parallel_for(ctx, last + 1 - first, row_grain(s.cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = first + begin; row < first + end; ++row) {
      const int64_t from = std::max<int64_t>(0, row * s.cols - s.first);
      f(s.row + row, from, std::min(s.count, (row + 1) * s.cols - s.first) - from);
    }
  });
}

/// Digits are at most 2^32, so their sums are exact in double, in any order.
void add_squares(const float* x, int64_t count, int64_t* record) {
  constexpr int64_t kExact = int64_t{1} << 20;
  static_assert(RowRecord::kDigits == 3);
  for (int64_t begin = 0; begin < count; begin += kExact) {
    double high = 0, middle = 0, low = 0;
#pragma omp simd reduction(+ : high, middle, low)
    for (int64_t i = begin; i < std::min(count, begin + kExact); ++i) {
      const double v = std::abs(x[i]) < 0x1p16f ? static_cast<double>(x[i]) : 0x1p16;
      const double square = v * v, first = std::floor(square);
      const double rest = (square - first) * 0x1p32, second = std::floor(rest);
      high += first;
      middle += second;
      low += std::floor((rest - second) * 0x1p32);
    }
    record[2] += static_cast<int64_t>(high);
    record[1] += static_cast<int64_t>(middle);
    record[0] += static_cast<int64_t>(low);
  }
}

float moment_of(const RowSegment& s, int64_t i) {
  if (s.dtype == DType::f32) return static_cast<const float*>(s.moment)[i];
  return static_cast<float>(static_cast<const bf16*>(s.moment)[i]);
}

void row_records(ExecutionContext& ctx, const RowRecordsArgs& a) {
  for (const RowSegment& s : a.segments)
    for_rows(ctx, s, [&](int64_t row, int64_t begin, int64_t count) {
      int64_t* const record = a.records + row * RowRecord::kWords;
      add_squares(s.x + begin, count, record);
      if (s.begins_rows && (s.first + begin) % s.cols == 0)
        record[RowRecord::kMoment] += std::bit_cast<uint32_t>(moment_of(s, begin));
    });
}

void scale_rows(ExecutionContext& ctx, const ScaleRowsArgs& a) {
  const bool moves = !a.skip || *a.skip == 0;
  for (const RowSegment& s : a.segments)
    for_rows(ctx, s, [&](int64_t row, int64_t begin, int64_t count) {
      float* const x = s.x + begin;
      const float scale = a.scales[row];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) x[i] *= scale;
      if (!moves) return;
      if (s.dtype == DType::f32) {
        std::fill_n(static_cast<float*>(s.moment) + begin, count, a.moments[row]);
        return;
      }
      const int64_t matrix_row = (s.first + begin) / s.cols;
      std::fill_n(static_cast<bf16*>(s.moment) + begin, count,
                  rounded(a.moments[row], noise_at(s.noise, matrix_row, NoiseUse::second_state)));
    });
}

void row_scales(ExecutionContext& ctx, const RowScalesArgs& a) {
  NorMuonKernels::reference()->row_scales(ctx, a);  // a few operations a row
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const NorMuonKernels* NorMuonKernels::cpu() {
  static constexpr NorMuonKernels table{
      .row_records = cpu::row_records, .row_scales = cpu::row_scales, .scale_rows = cpu::scale_rows};
  return &table;
}

}  // namespace sherd
