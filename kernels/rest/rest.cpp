#include <sherd/kernels/rest/rest.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/elementwise/elementwise.h>

namespace sherd::ops {

using namespace door;

namespace {

SplitArgs checked(const char* op, const Tensor& whole, const Tensor& high, const Tensor& low) {
  Check check(op);
  check.dtype("whole", whole, DType::f32).dtype("high", high, DType::bf16).dtype("low", low, DType::bf16);
  check.count("high", high, whole.numel()).count("low", low, whole.numel());
  check.done();
  return {whole.data<float>(), static_cast<uint16_t*>(high.raw()), static_cast<uint16_t*>(low.raw()),
          whole.numel()};
}

}  // namespace

void split(Stream& s, const Tensor& high, const Tensor& low, const Tensor& whole) {
  queue(s, "split", kernels<RestKernels>(s).split, checked("split", whole, high, low));
}

void join(Stream& s, const Tensor& whole, const Tensor& high, const Tensor& low) {
  queue(s, "join", kernels<RestKernels>(s).join, checked("join", whole, high, low));
}

void read_weights(Stream& s, const Tensor& to, const Tensor& weights, const Tensor& low) {
  if (low.defined()) return join(s, to, weights, low);
  return weights.dtype() == to.dtype() ? copy(s, to, weights) : cast(s, to, weights);
}

Tensor weights_as_f32(Stream& s, const Tensor& weights, const Tensor& low) {
  if (weights.dtype() == DType::f32) return weights;
  const Tensor values =
      Tensor::empty(s.device(), {weights.numel()}, DType::f32, MemoryClass::scratch, "fp32 weights");
  read_weights(s, values, weights, low);
  return values;
}

void write_weights(Stream& s, const Tensor& weights, const Tensor& low, const Tensor& from) {
  if (low.defined()) return split(s, weights, low, from);
  return weights.dtype() == from.dtype() ? copy(s, weights, from) : cast(s, weights, from);
}

}  // namespace sherd::ops
