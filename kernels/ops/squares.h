// Exact sums of squares, and what follows from a norm. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops/segments.h>

namespace sherd {

/// With norm = ExactSum::norm of the word-wise sum of the accumulators, which total (may be pinned host
/// memory) receives: skip[0] (may be null) = 1 when norm is not finite in f32 or the sum's kElsewhere is not
/// 0, else 0; factor[0] = max_norm > 0 and not skip ? min(1, max_norm / (norm + 1e-6)) : 1.
struct ClipFactorArgs {
  std::vector<const int64_t*> accumulators;
  double max_norm = 0;
  float* factor = nullptr;
  int64_t* total = nullptr;
  int64_t* skip = nullptr;
};

namespace ops {

/// Adds, for all segments in one pass, the exact sum of x[i]^2, the number of zeros and that of non-finite
/// elements; see ExactSum. The sums are normalised afterwards.
void accumulate_squares(Stream& s, std::span<const SquaresSegment> segments);
/// accumulator i64 [ExactSum::kWords]; x f32.
void accumulate_squares(Stream& s, const Tensor& accumulator, const Tensor& x);
/// dst += src, i64, wrapping.
void add_words(Stream& s, const Tensor& dst, const Tensor& src);
/// accumulators and total i64 [ExactSum::kWords], total may be a host tensor; skip i64 [1], may be undefined;
/// factor f32 [1].
void clip_factor(Stream& s, const Tensor& factor, const Tensor& total, std::span<const Tensor> accumulators,
                 double max_norm, const Tensor& skip = {});

}  // namespace ops
}  // namespace sherd
