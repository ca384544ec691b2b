#include <sherd/kernels/normuon/normuon.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <sherd/kernels/rest/detail/reference_forms.h>

namespace sherd::reference {
namespace {

/// f(row of the records and results, first element of the segment, count) for the part of each row in a
/// segment.
template <class F>
void for_rows(const RowSegment& s, F f) {
  for (int64_t i = 0; i < s.count;) {
    const int64_t row = (s.first + i) / s.cols, end = std::min(s.count, (row + 1) * s.cols - s.first);
    f(s.row + row, i, end - i);
    i = end;
  }
}

void row_records(ExecutionContext&, const RowRecordsArgs& a) {
  for (const RowSegment& s : a.segments) {
    for_rows(s, [&](int64_t row, int64_t begin, int64_t count) {
      int64_t* record = a.records + row * RowRecord::kWords;
      for (int64_t i = begin; i < begin + count; ++i) {
        // The square of 24 bits is exact in double, and so are its digits.
        const double x = std::abs(s.x[i]) < 0x1p16f ? static_cast<double>(s.x[i]) : 0x1p16;
        double rest = x * x;
        for (int d = RowRecord::kDigits - 1; d >= 0; --d) {
          const double digit = std::floor(rest);
          record[d] += static_cast<int64_t>(digit);
          rest = (rest - digit) * 0x1p32;
        }
      }
      if (s.begins_rows && (s.first + begin) % s.cols == 0)
        record[RowRecord::kMoment] += std::bit_cast<uint32_t>(StateAt{{s.moment, s.dtype}}.get(begin));
    });
  }
}

void row_scales(ExecutionContext&, const RowScalesArgs& a) {
  for (const RowMatrix& m : a.matrices) {
    const auto squares = [&](int64_t row) {
      const int64_t* record = a.records + row * RowRecord::kWords;
      double sum = 0;
      for (int d = 0; d < RowRecord::kDigits; ++d)
        sum += std::ldexp(static_cast<double>(record[d]), 32 * d - 64);
      return sum;
    };
    const auto inverse = [&](int64_t row) {
      return 1 / (std::sqrt(static_cast<double>(a.moments[row])) + a.eps);
    };
    double norm = 0;
    for (int64_t r = m.row; r < m.row + m.rows; ++r) {
      const auto bits = static_cast<uint32_t>(a.records[r * RowRecord::kWords + RowRecord::kMoment]);
      const double before = static_cast<double>(std::bit_cast<float>(bits));
      a.moments[r] =
          static_cast<float>(a.beta2 * before + (1 - a.beta2) * (squares(r) / static_cast<double>(m.cols)));
      norm += squares(r) * inverse(r) * inverse(r);
    }
    const double factor = norm > 0 ? m.target / std::sqrt(norm) : 0;
    for (int64_t r = m.row; r < m.row + m.rows; ++r) a.scales[r] = static_cast<float>(factor * inverse(r));
  }
}

void scale_rows(ExecutionContext&, const ScaleRowsArgs& a) {
  const bool moves = !a.skip || *a.skip == 0;
  for (const RowSegment& s : a.segments) {
    for_rows(s, [&](int64_t row, int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) s.x[i] *= a.scales[row];
      const int64_t matrix_row = (s.first + begin) / s.cols;
      for (int64_t i = begin; moves && i < begin + count; ++i) {
        // The same noise along the row, for the same value.
        float moment = a.moments[row];
        if (s.dtype == DType::bf16)
          moment = static_cast<float>(rounded(moment, noise_at(s.noise, matrix_row, NoiseUse::second_state)));
        put({s.moment, s.dtype}, i, moment);
      }
    });
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const NorMuonKernels* NorMuonKernels::reference() {
  static constexpr NorMuonKernels table{
      .row_records = reference::row_records,
      .row_scales = reference::row_scales,
      .scale_rows = reference::scale_rows,
  };
  return &table;
}

}  // namespace sherd
