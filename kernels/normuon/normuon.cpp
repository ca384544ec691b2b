#include <sherd/kernels/normuon/normuon.h>

#include <fmt/format.h>

#include <cmath>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/detail/check_forms.h>

namespace sherd::ops {

using namespace door;

namespace {

/// Segments have pointers, and their rows are among `rows`.
void check_rows(Check& check, std::span<const RowSegment> segments, int64_t rows) {
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& r = segments[i];
    if (r.count <= 0) continue;
    check.that(r.x && r.moment, fmt::format("segment {}: x or moment is null", i));
    check_dtypes(check, {.state = r.dtype});
    check_forms(check, i, {Master::f32, r.dtype}, nullptr, r.noise);
    const bool sound = r.cols > 0 && r.first >= 0 && r.row >= 0;
    check.that(sound && r.row + (r.first + r.count - 1) / r.cols < rows,
               fmt::format("segment {}: {} elements at {} of {} columns, rows from {}, leave the {} rows", i,
                           r.count, r.first, r.cols, r.row, rows));
  }
}

}  // namespace

void row_records(Stream& s, const Tensor& records, std::span<const RowSegment> segments) {
  Check check("row_records");
  check.dtype("records", records, DType::i64).done();
  check_rows(check, segments, records.numel() / RowRecord::kWords);
  check.done();
  queue(s, {"row_records", WorkKind::optimizer}, kernels<NorMuonKernels>(s).row_records,
        RowRecordsArgs{{segments.begin(), segments.end()}, records.data<int64_t>()});
}

void row_scales(Stream& s, const Tensor& scales, const Tensor& moments, const Tensor& records,
                std::span<const RowMatrix> matrices, double beta2, double eps) {
  Check check("row_scales");
  check.dtype("scales", scales, DType::f32)
      .dtype("moments", moments, DType::f32)
      .dtype("records", records, DType::i64)
      .done();
  check.count("moments", moments, scales.numel())
      .count("records", records, scales.numel() * RowRecord::kWords);
  for (size_t i = 0; i < matrices.size(); ++i) {
    const RowMatrix& m = matrices[i];
    check.that(m.row >= 0 && m.rows >= 0 && m.cols > 0 && m.row + m.rows <= scales.numel(),
               fmt::format("matrix {}: {} rows from {}, {} columns, leave the {} rows", i, m.rows, m.row,
                           m.cols, scales.numel()));
  }
  check.done();
  require(beta2 >= 0 && beta2 < 1, fmt::format("row_scales: beta2 {} must lie in [0, 1)", beta2));
  require(eps > 0 && std::isfinite(eps), fmt::format("row_scales: eps {} must be finite and positive", eps));
  queue(s, {"row_scales", WorkKind::optimizer}, kernels<NorMuonKernels>(s).row_scales,
        RowScalesArgs{{matrices.begin(), matrices.end()},
                      records.data<int64_t>(),
                      scales.data<float>(),
                      moments.data<float>(),
                      beta2,
                      eps});
}

void scale_rows(Stream& s, std::span<const RowSegment> segments, const Tensor& scales, const Tensor& moments,
                const Tensor& skip) {
  Check check("scale_rows");
  check.dtype("scales", scales, DType::f32).dtype("moments", moments, DType::f32).done();
  check.count("moments", moments, scales.numel());
  check_rows(check, segments, scales.numel());
  check_skip(check, skip);
  check.done();
  queue(s, {"scale_rows", WorkKind::optimizer}, kernels<NorMuonKernels>(s).scale_rows,
        ScaleRowsArgs{{segments.begin(), segments.end()},
                      scales.data<float>(),
                      moments.data<float>(),
                      pointer<int64_t>(skip)});
}

}  // namespace sherd::ops
