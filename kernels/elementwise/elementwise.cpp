#include <sherd/kernels/elementwise/elementwise.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/device/file_memory.h>

namespace sherd::ops {

using namespace door;

void fill(Stream& s, const Tensor& dst, double value) {
  Check("fill").that(dst.defined(), "dst is undefined").done();
  if (FileMemory* const file = dst.place() == Place::host ? dst.device().tier_file() : nullptr) {
    s.submit({"fill", WorkKind::copy}, [=, f = kernels<ElementwiseKernels>(s).fill, count = dst.numel(),
                                        to = static_cast<std::byte*>(dst.raw()),
                                        dtype = dst.dtype()](ExecutionContext& c) {
      const int64_t size = size_of(dtype), block = std::min(count, int64_t{1} << 20);
      std::vector<std::byte> values(static_cast<size_t>(block * size));  // a mapping would be resident
      f(c, {values.data(), dtype}, block, value);
      for (int64_t at = 0; at < count; at += block)
        file->write(to + at * size, values.data(), std::min(block, count - at) * size);
    });
    return;
  }
  queue(s, {"fill", WorkKind::copy}, kernels<ElementwiseKernels>(s).fill, ref(dst), dst.numel(), value);
}

void cast(Stream& s, const Tensor& dst, const Tensor& src) {
  Check("cast").dtype("dst", dst, kFloats).dtype("src", src, kFloats).count("dst", dst, src.numel()).done();
  queue(s, {"cast", WorkKind::copy}, kernels<ElementwiseKernels>(s).cast, ref(dst), ref(src), src.numel());
}

void scale(Stream& s, const Tensor& x, float factor) {
  Check("scale").dtype("x", x, kActivations).done();
  queue(s, "scale", kernels<ElementwiseKernels>(s).scale, ref(x), x.numel(), factor);
}

void scale_by(Stream& s, std::span<const ScaleSegment> segments, const Tensor& factor) {
  Check check("scale_by");
  check.dtype("factor", factor, DType::f32).count("factor", factor, 1);
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i)
    check.that(segments[i].count <= 0 || segments[i].x, fmt::format("segment {}: x is null", i));
  check.done();
  queue(s, {"scale_by", WorkKind::optimizer}, kernels<ElementwiseKernels>(s).scale_by,
        {segments.begin(), segments.end()}, factor.data<float>());
}

void scale_by(Stream& s, const Tensor& x, const Tensor& factor) {
  Check("scale_by").dtype("x", x, DType::f32).done();
  const ScaleSegment segment{x.data<float>(), x.numel()};
  scale_by(s, {&segment, 1}, factor);
}

void clamp(Stream& s, std::span<const ScaleSegment> segments, double limit) {
  Check check("clamp");
  check.that(limit >= 0, fmt::format("limit {} must not be negative", limit));
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i)
    check.that(segments[i].count <= 0 || segments[i].x, fmt::format("segment {}: x is null", i));
  check.done();
  queue(s, {"clamp", WorkKind::optimizer}, kernels<ElementwiseKernels>(s).clamp,
        {segments.begin(), segments.end()}, static_cast<float>(limit));
}

void scaled_add(Stream& s, const Tensor& dst, float alpha, const Tensor& src) {
  Check check("scaled_add");
  check.dtype("dst", dst, DType::f32).dtype("src", src, kActivations).count("src", src, dst.numel()).done();
  queue(s, "scaled_add", kernels<ElementwiseKernels>(s).scaled_add, dst.data<float>(), alpha, ref(src),
        dst.numel());
}

void scale_and_add(Stream& s, const Tensor& dst, float decay, float alpha, const Tensor& src) {
  Check check("scale_and_add");
  check.dtype("dst", dst, DType::f32).dtype("src", src, DType::f32).count("src", src, dst.numel()).done();
  queue(s, "scale_and_add", kernels<ElementwiseKernels>(s).scale_and_add, dst.data<float>(), decay, alpha,
        src.data<float>(), dst.numel());
}

namespace {

void of_two(Stream& s, const char* op, decltype(ElementwiseKernels::add) kernel, const Tensor& out,
            const Tensor& a, const Tensor& b) {
  Check check(op);
  check.dtype("out", out, kActivations).done();
  check.dtype("a", a, out.dtype()).dtype("b", b, out.dtype());
  check.count("a", a, out.numel()).count("b", b, out.numel()).done();
  queue(s, op, kernel, ref(out), ref(a), ref(b), out.numel());
}

}  // namespace

void add(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b) {
  of_two(s, "add", kernels<ElementwiseKernels>(s).add, out, a, b);
}

void multiply(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b) {
  of_two(s, "multiply", kernels<ElementwiseKernels>(s).multiply, out, a, b);
}

}  // namespace sherd::ops
