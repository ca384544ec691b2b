#include <sherd/kernels/ops/norm.h>

#include <sherd/kernels/ops/detail/door.h>

namespace sherd::ops {

using namespace door;

void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps) {
  Check check("rms_norm_forward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("w", w, x.dtype());
  check.dtype("rstd", rstd, DType::f32).shape("y", y, x.shape());
  check.count("w", w, x.size(1)).count("rstd", rstd, x.size(0)).done();
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .eps = eps, .x = ref(x), .w = ref(w), .y = ref(y)};
  r.rstd = rstd.data<float>();
  queue(s, "rms_norm_forward", kernels(s).rms_norm_forward, r);
}

void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd) {
  Check check("rms_norm_backward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("w", w, x.dtype());
  check.dtype("dy", dy, x.dtype())
      .dtype("dx", dx, x.dtype())
      .dtype("dw", dw, DType::f32)
      .dtype("rstd", rstd, DType::f32);
  check.shape("dy", dy, x.shape()).shape("dx", dx, x.shape());
  check.count("w", w, x.size(1)).count("dw", dw, x.size(1)).count("rstd", rstd, x.size(0)).done();
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .x = ref(x), .w = ref(w)};
  r.rstd = rstd.data<float>();
  r.dy = ref(dy);
  r.dx = ref(dx);
  r.dw = dw.data<float>();
  queue(s, "rms_norm_backward", kernels(s).rms_norm_backward, r);
}

}  // namespace sherd::ops
