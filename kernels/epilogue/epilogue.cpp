#include <sherd/kernels/epilogue/epilogue.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

void gelu_forward(Stream& s, const Tensor& y, const Tensor& x) {
  Check check("gelu_forward");
  check.dtype("x", x, kActivations).done();
  check.dtype("y", y, x.dtype()).count("y", y, x.numel()).done();
  queue(s, "gelu_forward", kernels<EpilogueKernels>(s).gelu_forward, ref(y), ref(x), x.numel());
}

void gelu_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  Check check("gelu_backward");
  check.dtype("x", x, kActivations).done();
  check.dtype("dx", dx, x.dtype()).dtype("dy", dy, x.dtype());
  check.count("dx", dx, x.numel()).count("dy", dy, x.numel()).done();
  queue(s, "gelu_backward", kernels<EpilogueKernels>(s).gelu_backward, ref(dx), ref(dy), ref(x), x.numel());
}

void add_bias(Stream& s, const Tensor& y, const Tensor& bias) {
  Check check("add_bias");
  check.dims("y", y, 2).dtype("y", y, kActivations).dtype("bias", bias, y.dtype());
  check.count("bias", bias, y.size(1)).done();
  queue(s, "add_bias", kernels<EpilogueKernels>(s).add_bias, ref(y), ref(bias), y.size(0), y.size(1));
}

void bias_backward(Stream& s, const Tensor& dbias, const Tensor& dy) {
  Check check("bias_backward");
  check.dims("dy", dy, 2).dtype("dy", dy, kActivations).dtype("dbias", dbias, wide(dy.dtype()));
  check.count("dbias", dbias, dy.size(1)).done();
  s.expect({.bytes = dy.nbytes()});
  s.submit("bias_backward",
           [f = kernels<EpilogueKernels>(s).bias_backward, to = ref(dbias), from = ref(dy), rows = dy.size(0),
            cols = dy.size(1)](ExecutionContext& c) { f(c, to, from, rows, cols); });
}

}  // namespace sherd::ops
