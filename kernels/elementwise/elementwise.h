// Operations element by element. ops.h says what holds for all operations.
#pragma once

#include <span>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops/segments.h>

namespace sherd::ops {

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

}  // namespace sherd::ops
