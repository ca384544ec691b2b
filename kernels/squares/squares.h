// Exact sums of squares and of magnitudes, the largest magnitude, and what follows from a norm. ops.h says what holds
// for all operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// A piece whose squares, or magnitudes, are summed.
struct SquaresSegment {
  const void* x = nullptr;
  int64_t count = 0;
  /// ExactSum::kWords words that sum, zeros and non-finite elements are added to; null: none of it.
  int64_t* sum = nullptr;
  /// The number of non-finite elements is added here as well; may be null.
  int64_t* non_finite = nullptr;
  DType dtype = DType::f32;  // of x: f32 or bf16
};

Work work_of(const Device& device, const std::vector<SquaresSegment>& segments);

/// Kind of the norm of all elements.
enum class NormKind {
  two,       // the square root of the sum of squares
  one,       // the sum of magnitudes
  infinity,  // the largest magnitude
};

/// With norm of the word-wise sum of the accumulators, which total (may be pinned host memory) receives (two:
/// ExactSum::norm; one: ExactSum::value, rounded to fp32; infinity: `largest`): skip[0] (may be null) = 1 when norm
/// is not finite in f32 or the sum's kElsewhere is not
/// 0, else 0; factor[0] = max_norm > 0 and not skip ? min(1, max_norm / (norm + 1e-6)) : 1.
struct ClipFactorArgs {
  std::vector<const int64_t*> accumulators;
  double max_norm = 0;
  float* factor = nullptr;
  int64_t* total = nullptr;
  int64_t* skip = nullptr;
  NormKind kind = NormKind::two;
  const float* largest = nullptr;  // of NormKind::infinity
};

struct SquaresKernels {
  static constexpr const char* kName = "squares";
  static const SquaresKernels* reference();
  static const SquaresKernels* cpu();
  static const SquaresKernels* cuda();

  void (*accumulate_squares)(ExecutionContext&, const std::vector<SquaresSegment>&);
  void (*accumulate_magnitudes)(ExecutionContext&, const std::vector<SquaresSegment>&);
  void (*largest_magnitude)(ExecutionContext&, float* largest, const std::vector<SquaresSegment>&);
  void (*add_words)(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count);
  void (*clip_factor)(ExecutionContext&, const ClipFactorArgs&);
};

namespace ops {

/// Adds, for all segments in one pass, the exact sum of x[i]^2, the number of zeros and that of non-finite
/// elements; see ExactSum. The sums are normalised afterwards.
void accumulate_squares(Stream& s, std::span<const SquaresSegment> segments);
/// accumulator i64 [ExactSum::kWords]; x f32.
void accumulate_squares(Stream& s, const Tensor& accumulator, const Tensor& x);
/// Same with |x[i]| instead of x[i]^2.
void accumulate_magnitudes(Stream& s, std::span<const SquaresSegment> segments);
/// largest[0] = the larger of itself (not negative) and of |x[i]| over all finite elements; f32 [1]. Only `x` and
/// `count` of the segments are read.
void largest_magnitude(Stream& s, const Tensor& largest, std::span<const SquaresSegment> segments);
/// dst += src, i64, wrapping.
void add_words(Stream& s, const Tensor& dst, const Tensor& src);
/// accumulators and total i64 [ExactSum::kWords], total may be a host tensor; skip i64 [1], may be undefined;
/// factor f32 [1]; `largest` f32 [1] for NormKind::infinity, otherwise undefined.
void clip_factor(Stream& s, const Tensor& factor, const Tensor& total, std::span<const Tensor> accumulators,
                 double max_norm, const Tensor& skip = {}, NormKind kind = NormKind::two,
                 const Tensor& largest = {});

}  // namespace ops
}  // namespace sherd
