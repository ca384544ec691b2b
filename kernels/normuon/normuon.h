// NorMuon's passes over orthogonalized rows. ops.h says what holds for all operations.
//
// Matrices arrive in pieces: consecutive elements of a row-major matrix of `cols` columns, which may begin
// and end within rows. Of every row of the matrix there is a record of RowRecord::kWords words, zero at
// first, to which every piece adds its share. Records are integers, so that shares of many ranks are added by
// an integer all-reduce and show neither how the matrix is cut nor in which order: the same bits for every
// layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// State of one row: the sum of squares in fixed point, as digits of 32 bits that are not carried, and the
/// row's second moment so far, which the owner of its first element contributes.
struct RowRecord {
  static constexpr int kDigits = 3;        // digit i has weight 2^(32 * i - 64)
  static constexpr int kMoment = kDigits;  // the bits of an f32
  static constexpr int kWords = kDigits + 1;
};

/// `count` elements of a matrix of `cols` columns.
struct RowSegment {
  float* x = nullptr;      // orthogonalized
  void* moment = nullptr;  // the second moment, the same value along a row, f32 or bf16
  int64_t count = 0;
  int64_t first = 0;  // the place of x[0]: row first / cols, column first % cols
  int64_t cols = 1;
  int64_t row = 0;  // the record and the result of the matrix's row 0
  /// False where the matrix is a range of columns of a larger one that does not begin its rows.
  bool begins_rows = true;
  DType dtype = DType::f32;  // of moment
  /// Read where moment is bf16. Element i of the noise is row i of the matrix.
  Noise noise = {};
};

/// One matrix, whole: its rows' records and results begin at `row`; `target` is the Frobenius norm of the
/// result.
struct RowMatrix {
  int64_t row = 0, rows = 0, cols = 1;
  double target = 0;
};

struct RowRecordsArgs {
  std::vector<RowSegment> segments;
  int64_t* records = nullptr;
};
struct RowScalesArgs {
  std::vector<RowMatrix> matrices;
  const int64_t* records = nullptr;
  float* scales = nullptr;
  float* moments = nullptr;
  double beta2 = 0, eps = 0;
};
struct ScaleRowsArgs {
  std::vector<RowSegment> segments;
  const float* scales = nullptr;
  const float* moments = nullptr;
  const int64_t* skip = nullptr;
};

struct NorMuonKernels {
  static constexpr const char* kName = "normuon";
  static const NorMuonKernels* reference();
  static const NorMuonKernels* cpu();
  static const NorMuonKernels* cuda();

  void (*row_records)(ExecutionContext&, const RowRecordsArgs&);
  void (*row_scales)(ExecutionContext&, const RowScalesArgs&);
  void (*scale_rows)(ExecutionContext&, const ScaleRowsArgs&);
};

namespace ops {

/// records i64 [rows, RowRecord::kWords] += for every row of the segments the squares of their elements, each
/// cut to a multiple of 2^-64 (magnitudes above 2^16, and NaN, count as 2^16), and the moment of rows that
/// begin in it.
void row_records(Stream& s, const Tensor& records, std::span<const RowSegment> segments);
/// For every row r of every matrix, in double, each result rounded once to f32:
///   moments[r] = beta2 * moment + (1 - beta2) * (sum of squares / cols);
///   scales[r]  = target / F / (sqrt(moments[r]) + eps), F^2 = sum over rows of (sum of squares) /
///   (sqrt(moments[r]) + eps)^2,
/// and zeros where F is zero. scales and moments: f32 [rows].
void row_scales(Stream& s, const Tensor& scales, const Tensor& moments, const Tensor& records,
                std::span<const RowMatrix> matrices, double beta2, double eps);
/// x *= scales[row], and moment = moments[row], rounded as it is stored (rest.h), unless skip (i64 [1], may be undefined) is other
/// than 0.
void scale_rows(Stream& s, std::span<const RowSegment> segments, const Tensor& scales, const Tensor& moments,
                const Tensor& skip = {});

}  // namespace ops
}  // namespace sherd
