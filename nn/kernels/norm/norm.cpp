#include <sherd/nn/kernels/norm/norm.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

void check_addend(Check& check, const Tensor& addend, const Tensor& x) {
  if (addend.defined()) check.dtype("addend", addend, x.dtype()).shape("addend", addend, x.shape());
}

void take_whole(Check& check, const WholeRows& whole, const Tensor& x, RmsNormArgs& r) {
  if (!whole.sums.defined()) return;
  check.dtype("sums", whole.sums, wide(x.dtype())).count("sums", whole.sums, x.size(0));
  r.sums = ref(whole.sums);
  r.of = whole.cols;
}

}  // namespace

void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps, const WholeRows& whole) {
  Check check("rms_norm_forward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("w", w, x.dtype());
  check.dtype("rstd", rstd, wide(x.dtype())).shape("y", y, x.shape());
  check.count("w", w, x.size(1)).count("rstd", rstd, x.size(0));
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .eps = eps, .x = ref(x), .w = ref(w), .y = ref(y)};
  take_whole(check, whole, x, r);
  check.done();
  r.rstd = ref(rstd);
  queue(s, "rms_norm_forward", kernels<NormKernels>(s).rms_norm_forward, r);
}

void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd, const Tensor& addend, const WholeRows& whole) {
  Check check("rms_norm_backward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("w", w, x.dtype());
  check.dtype("dy", dy, x.dtype())
      .dtype("dx", dx, x.dtype())
      .dtype("dw", dw, wide(x.dtype()))
      .dtype("rstd", rstd, wide(x.dtype()));
  check.shape("dy", dy, x.shape()).shape("dx", dx, x.shape());
  check.count("w", w, x.size(1)).count("dw", dw, x.size(1)).count("rstd", rstd, x.size(0));
  check_addend(check, addend, x);
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .x = ref(x), .w = ref(w)};
  take_whole(check, whole, x, r);
  check.done();
  r.rstd = ref(rstd);
  r.dy = ref(dy);
  r.dx = ref(dx);
  r.dw = ref(dw);
  if (addend.defined()) r.addend = ref(addend);
  queue(s, "rms_norm_backward", kernels<NormKernels>(s).rms_norm_backward, r);
}

void rms_norm_sums(Stream& s, const Tensor& sums, const Tensor& x, const Tensor& dy, const Tensor& w) {
  Check check("rms_norm_sums");
  check.dims("x", x, 2).dtype("x", x, kActivations);
  check.dtype("sums", sums, wide(x.dtype())).count("sums", sums, x.size(0));
  if (dy.defined()) {
    check.dtype("dy", dy, x.dtype()).shape("dy", dy, x.shape());
    check.dtype("w", w, x.dtype()).count("w", w, x.size(1));
  }
  check.done();
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .x = ref(x)};
  if (dy.defined()) r.dy = ref(dy), r.w = ref(w);
  r.sums = ref(sums);
  queue(s, "rms_norm_sums", kernels<NormKernels>(s).rms_norm_sums, r);
}

void layer_norm_forward(Stream& s, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& w, const Tensor& bias, float eps) {
  Check check("layer_norm_forward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("w", w, x.dtype());
  check.dtype("mean", mean, wide(x.dtype())).dtype("rstd", rstd, wide(x.dtype())).shape("y", y, x.shape());
  check.count("w", w, x.size(1)).count("mean", mean, x.size(0)).count("rstd", rstd, x.size(0));
  if (bias.defined()) check.dtype("bias", bias, x.dtype()).count("bias", bias, x.size(1));
  check.done();
  LayerNormArgs a{.rows = x.size(0), .cols = x.size(1), .eps = eps, .x = ref(x), .w = ref(w), .y = ref(y)};
  if (bias.defined()) a.bias = ref(bias);
  a.mean = ref(mean);
  a.rstd = ref(rstd);
  queue(s, "layer_norm_forward", kernels<NormKernels>(s).layer_norm_forward, a);
}

void layer_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                         const Tensor& w, const Tensor& mean, const Tensor& rstd, const Tensor& addend) {
  Check check("layer_norm_backward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("w", w, x.dtype());
  check.dtype("dy", dy, x.dtype()).dtype("dx", dx, x.dtype()).dtype("dw", dw, wide(x.dtype()));
  check.dtype("mean", mean, wide(x.dtype())).dtype("rstd", rstd, wide(x.dtype()));
  check.shape("dy", dy, x.shape())
      .shape("dx", dx, x.shape())
      .count("w", w, x.size(1))
      .count("dw", dw, x.size(1));
  check.count("mean", mean, x.size(0)).count("rstd", rstd, x.size(0));
  check_addend(check, addend, x);
  check.done();
  LayerNormArgs a{.rows = x.size(0), .cols = x.size(1), .x = ref(x), .w = ref(w)};
  a.mean = ref(mean);
  a.rstd = ref(rstd);
  a.dy = ref(dy);
  a.dx = ref(dx);
  a.dw = ref(dw);
  if (addend.defined()) a.addend = ref(addend);
  queue(s, "layer_norm_backward", kernels<NormKernels>(s).layer_norm_backward, a);
}

}  // namespace sherd::ops
