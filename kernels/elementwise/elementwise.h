// Operations element by element. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// A piece that is multiplied, or clamped.
struct ScaleSegment {
  float* x = nullptr;
  int64_t count = 0;
};

struct ElementwiseKernels {
  static constexpr const char* kName = "elementwise";
  static const ElementwiseKernels* reference();
  static const ElementwiseKernels* cpu();
  static const ElementwiseKernels* cuda();

  void (*fill)(ExecutionContext&, Ref dst, int64_t count, double value);
  void (*cast)(ExecutionContext&, Ref dst, Ref src, int64_t count);
  void (*scale)(ExecutionContext&, Ref x, int64_t count, float factor);
  void (*scale_by)(ExecutionContext&, const std::vector<ScaleSegment>&, const float* factor);
  void (*clamp)(ExecutionContext&, const std::vector<ScaleSegment>&, float limit);
  void (*scaled_add)(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
  void (*scale_and_add)(ExecutionContext&, float* dst, float decay, float alpha, const float* src,
                        int64_t count);
  void (*add)(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
  void (*multiply)(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
};

namespace ops {

/// dst[i] = value; any dtype.
void fill(Stream& s, const Tensor& dst, double value);
/// dst[i] = src[i], rounded once; element counts equal, any pair of f32, bf16, f16 and f64.
void cast(Stream& s, const Tensor& dst, const Tensor& src);
/// x *= factor; f32 or bf16.
void scale(Stream& s, const Tensor& x, float factor);
/// x *= factor[0] for all segments in one pass; factor f32 [1] read on the stream; a factor of exactly 1
/// leaves them untouched. @throws ShapeMismatch naming every segment that lacks a pointer.
void scale_by(Stream& s, std::span<const ScaleSegment> segments, const Tensor& factor);
void scale_by(Stream& s, const Tensor& x, const Tensor& factor);  // f32
/// x = min(max(x, -limit), limit) for all segments in one pass; NaN stays. @throws ShapeMismatch naming every
/// segment that lacks a pointer, and a limit that is negative or NaN.
void clamp(Stream& s, std::span<const ScaleSegment> segments, double limit);
/// dst += alpha * src; dst f32, src f32 or bf16.
void scaled_add(Stream& s, const Tensor& dst, float alpha, const Tensor& src);
/// dst = decay * dst + alpha * src, all f32.
void scale_and_add(Stream& s, const Tensor& dst, float decay, float alpha, const Tensor& src);
/// out = a + b, one dtype (f32 or bf16); out may be a or b.
void add(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b);
/// out = a * b, likewise.
void multiply(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b);

}  // namespace ops
}  // namespace sherd
