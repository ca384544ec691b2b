#include <sherd/kernels/normuon/normuon.h>

#include <cmath>

#include "lab.h"

namespace sherd::test {
namespace {

struct Matrix {
  int64_t rows = 0, cols = 0;
};

struct RowResults {
  std::vector<int64_t> records;
  Floats scales, moments, x, v;
};

/// Two steps over consecutive matrices, cut into pieces of `piece` elements (0: not cut).
RowResults run(Lab& lab, const std::vector<Matrix>& list, int64_t piece, int64_t skip = 0) {
  int64_t rows = 0, elements = 0;
  std::vector<RowMatrix> matrices;
  std::vector<RowSegment> segments;
  for (auto& m : list) elements += m.rows * m.cols;
  const Tensor x = lab.random({elements}, 3, DType::f32, 0.2f), v = lab.full({elements}, 0);
  int64_t at = 0;
  for (auto& m : list) {
    const int64_t n = m.rows * m.cols, step = piece == 0 ? n : piece;
    matrices.push_back({rows, m.rows, m.cols, std::sqrt(static_cast<double>(n))});
    for (int64_t first = 0; first < n; first += step)
      segments.push_back({x.data<float>() + at + first, v.data<float>() + at + first,
                          std::min(step, n - first), first, m.cols, rows, true});
    at += n;
    rows += m.rows;
  }
  const Tensor records = lab.empty({rows, RowRecord::kWords}, DType::i64), scales = lab.empty({rows}),
               moments = lab.empty({rows}), skips = lab.full({1}, static_cast<double>(skip), DType::i64);
  for (int step = 0; step < 2; ++step) {
    ops::fill(lab.s, records, 0);
    ops::row_records(lab.s, records, segments);
    ops::row_scales(lab.s, scales, moments, records, matrices, 0.75, 1e-8);
    ops::scale_rows(lab.s, segments, scales, moments, skips);
  }
  RowResults r{std::vector<int64_t>(static_cast<size_t>(records.numel())), lab.floats(scales),
               lab.floats(moments), lab.floats(x), lab.floats(v)};
  ops::copy_to_host(lab.s, r.records.data(), records);
  return r;
}

const std::vector<Matrix>& matrices() {
  static const std::vector<Matrix> list = {{3, 5}, {1, 70}, {40, 1}, {300, 33}, {2, 1000}};
  return list;
}

TEST(NorMuonRows, AreScaledByTheirSecondMomentAndTheNorm) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor x = lab.tensor({2, 2}, {3, 4, 0, 0.5f}), v = lab.tensor({2, 2}, {2, 9, 0, 9});
    const Tensor records = lab.empty({2, RowRecord::kWords}, DType::i64), scales = lab.empty({2}),
                 moments = lab.empty({2});
    ops::fill(lab.s, records, 0);
    const std::vector<RowSegment> whole = {{x.data<float>(), v.data<float>(), 4, 0, 2, 0, true}};
    ops::row_records(lab.s, records, whole);
    const std::vector<RowMatrix> one = {{0, 2, 2, 10}};
    ops::row_scales(lab.s, scales, moments, records, one, 0.5, 0.25);
    ops::scale_rows(lab.s, whole, scales, moments);
    // v = (2 / 2 + 12.5 / 2, 0 + 0.125 / 2), divisors sqrt(v) + 1/4.
    const double a = std::sqrt(7.25) + 0.25, b = 0.5, norm = std::sqrt(25 / (a * a) + 0.25 / (b * b));
    const Floats want = {float(30 / a / norm), float(40 / a / norm), 0, float(5 / b / norm)};
    expect_close(lab.floats(x), want, 1e-6);
    EXPECT_EQ(lab.floats(v), (Floats{7.25f, 7.25f, 0.0625f, 0.0625f}));
  }
}

TEST(NorMuonRows, DoNotShowHowTheyAreCut) {
  Lab fast, slow("reference");
  const RowResults want = run(slow, matrices(), 0);
  for (const int64_t piece : {0, 1, 7, 33, 500}) {
    const RowResults got = run(fast, matrices(), piece), again = run(fast, matrices(), 0);
    EXPECT_EQ(bits(got.x), bits(again.x)) << piece;
    EXPECT_EQ(bits(got.v), bits(again.v)) << piece;
    EXPECT_EQ(got.records, want.records) << piece;
    // Sums of at most 300 rows in double, in another order: far below the rounding to f32 at the end of both
    // steps.
    expect_close(got.scales, want.scales, 4e-7);
    expect_close(got.moments, want.moments, 4e-7);
    expect_close(got.x, want.x, 8e-7);
  }
}

TEST(NorMuonRows, SkippedStepsKeepTheMoments) {
  Lab lab;
  for (const float v : run(lab, matrices(), 7, 1).v) EXPECT_EQ(v, 0);
}

TEST(NorMuonRows, ZerosAndWhatIsOutOfRangeStayFinite) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor x = lab.tensor({1, 4}, {0, 0, 1e30f, NAN}), zeros = lab.full({2, 3}, 0),
                 v = lab.full({10}, 0);
    const Tensor records = lab.empty({3, RowRecord::kWords}, DType::i64), scales = lab.empty({3}),
                 moments = lab.empty({3});
    ops::fill(lab.s, records, 0);
    const std::vector<RowSegment> both = {{x.data<float>(), v.data<float>(), 4, 0, 4, 0, true},
                                          {zeros.data<float>(), v.data<float>() + 4, 6, 0, 3, 1, true}};
    ops::row_records(lab.s, records, both);
    const std::vector<RowMatrix> list = {{0, 1, 4, 2}, {1, 2, 3, 2}};
    ops::row_scales(lab.s, scales, moments, records, list, 0, 1e-8);
    ops::scale_rows(lab.s, both, scales, moments);
    EXPECT_EQ(lab.floats(moments), (Floats{0x1p31f, 0, 0}));  // two elements count as 2^16: their mean square
    EXPECT_EQ(lab.floats(zeros), Floats(6, 0));
  }
}

TEST(NorMuonRows, RefusesSegmentsThatLeaveTheRows) {
  Lab lab;
  const Tensor x = lab.full({6}, 1), records = lab.empty({2, RowRecord::kWords}, DType::i64),
               two = lab.empty({2});
  const std::vector<RowSegment> behind = {{x.data<float>(), x.data<float>(), 6, 1, 3, 0, true}};
  EXPECT_THROW(ops::row_records(lab.s, records, behind), ShapeMismatch);
  const std::vector<RowSegment> null = {{x.data<float>(), nullptr, 6, 0, 3, 0, true}};
  EXPECT_THROW(ops::row_records(lab.s, records, null), ShapeMismatch);
  const std::vector<RowMatrix> wide = {{1, 2, 3, 1}};
  EXPECT_THROW(ops::row_scales(lab.s, two, two, records, wide, 0.5, 1), ShapeMismatch);
  EXPECT_THROW(ops::row_scales(lab.s, two, two, records, {}, 1, 1), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
