#include <sherd/nn/kernels/softmax/softmax.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

SoftmaxArgs rows_of(Check& check, const char* name, const Tensor& t) {
  check.dtype(name, t, kActivations).done();
  check.that(t.dim() > 0, fmt::format("{} is a scalar, must have a dimension", name)).done();
  const int64_t cols = t.shape().back();
  return {.rows = cols == 0 ? 0 : t.numel() / cols, .cols = cols};
}

}  // namespace

void softmax_forward(Stream& s, const Tensor& y, const Tensor& x) {
  Check check("softmax_forward");
  SoftmaxArgs a = rows_of(check, "x", x);
  check.dtype("y", y, x.dtype()).shape("y", y, x.shape()).done();
  a.x = ref(x);
  a.y = ref(y);
  queue(s, "softmax_forward", kernels<SoftmaxKernels>(s).softmax_forward, a);
}

void softmax_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& y) {
  Check check("softmax_backward");
  SoftmaxArgs a = rows_of(check, "y", y);
  check.dtype("dx", dx, y.dtype()).dtype("dy", dy, y.dtype());
  check.shape("dx", dx, y.shape()).shape("dy", dy, y.shape()).done();
  a.y = ref(y);
  a.dy = ref(dy);
  a.dx = ref(dx);
  queue(s, "softmax_backward", kernels<SoftmaxKernels>(s).softmax_backward, a);
}

}  // namespace sherd::ops
