#include <sherd/kernels/elementwise/elementwise.h>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void fill(ExecutionContext&, Ref dst, int64_t count, double value) {
  for (int64_t i = 0; i < count; ++i) put(dst, i, value);
}

void cast(ExecutionContext&, Ref dst, Ref src, int64_t count) {
  for (int64_t i = 0; i < count; ++i) put(dst, i, get(src, i));
}

// Single fp32 operations, rounded one by one: other tables must give the same bits.

// f64 has double operations instead.

void scale(ExecutionContext&, Ref x, int64_t count, float factor) {
  if (x.dtype == DType::f64) {
    for (int64_t i = 0; i < count; ++i) x.as<double>()[i] *= factor;
    return;
  }
  for (int64_t i = 0; i < count; ++i) put(x, i, static_cast<float>(get(x, i)) * factor);
}

void scale_by(ExecutionContext&, const std::vector<ScaleSegment>& segments, const float* factor) {
  if (factor[0] == 1) return;
  for (const ScaleSegment& s : segments)
    for (int64_t i = 0; i < s.count; ++i) s.x[i] *= factor[0];
}

void clamp(ExecutionContext&, const std::vector<ScaleSegment>& segments, float limit) {
  for (const ScaleSegment& s : segments)
    for (int64_t i = 0; i < s.count; ++i) {
      if (s.x[i] > limit) s.x[i] = limit;
      if (s.x[i] < -limit) s.x[i] = -limit;
    }
}

void scaled_add(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = dst[i] + alpha * static_cast<float>(get(src, i));
}

void scale_and_add(ExecutionContext&, float* dst, float decay, float alpha, const float* src, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = decay * dst[i] + alpha * src[i];
}

void add(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count) {
  if (out.dtype == DType::f64) {
    for (int64_t i = 0; i < count; ++i) put(out, i, get(a, i) + get(b, i));
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    put(out, i, static_cast<float>(get(a, i)) + static_cast<float>(get(b, i)));
}

// The double product of two floats is exact: rounded once, it is the product in f32.
void multiply(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) put(out, i, get(a, i) * get(b, i));
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const ElementwiseKernels* ElementwiseKernels::reference() {
  static constexpr ElementwiseKernels table{
      .fill = reference::fill,
      .cast = reference::cast,
      .scale = reference::scale,
      .scale_by = reference::scale_by,
      .clamp = reference::clamp,
      .scaled_add = reference::scaled_add,
      .scale_and_add = reference::scale_and_add,
      .add = reference::add,
      .multiply = reference::multiply,
  };
  return &table;
}

}  // namespace sherd
