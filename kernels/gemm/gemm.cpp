#include <sherd/kernels/gemm/gemm.h>

#include <fmt/format.h>

#include <algorithm>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {

Work work_of(const Device& device, const GemmArgs& g) {
  const auto scratch = device.kernels<GemmKernels>().scratch;
  const bool even = (g.lda | g.ldb) * size_of(g.a.dtype) % 16 == 0 && g.ldc * size_of(g.c.dtype) % 16 == 0;
  const int64_t outputs = g.m * g.n * size_of(g.c.dtype);
  return {.flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k),
          .bytes = (g.m + g.n) * g.k * size_of(g.a.dtype) + (g.beta != 0 ? 2 : 1) * outputs +
                   (g.pre.data != nullptr ? outputs : 0) + (g.residual.data != nullptr ? outputs : 0),
          .scratch = scratch != nullptr ? scratch(g, device.threads()) : 0,
          .dtype = g.a.dtype,
          .width = even ? std::min({g.m, g.n, g.k}) : 1};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

GemmArgs gemm_args(Check& check, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                   bool trans_b) {
  check.dims("A", a, 2).dims("B", b, 2).dims("C", c, 2).dtype("A", a, kActivations).dtype("B", b, a.dtype());
  GemmArgs g{.trans_a = trans_a, .trans_b = trans_b, .a = ref(a), .b = ref(b), .c = ref(c)};
  g.m = a.size(trans_a ? 1 : 0);
  g.k = a.size(trans_a ? 0 : 1);
  g.n = b.size(trans_b ? 0 : 1);
  g.lda = std::max<int64_t>(1, a.size(1));
  g.ldb = std::max<int64_t>(1, b.size(1));
  g.ldc = std::max<int64_t>(1, g.n);
  if (b.size(trans_b ? 1 : 0) != g.k)  // a text for each product would cost as much as a small one
    check.that(false, fmt::format("op(A) op(B) do not fit: A {}{}, B {}{}", to_string(a.shape()),
                                  trans_a ? "^T" : "", to_string(b.shape()), trans_b ? "^T" : ""));
  check.shape("C", c, {g.m, g.n});
  return g;
}

/// The first product of a shape makes a plan, which loads kernels: InOrder.
void queue_product(Stream& s, const char* what, const GemmArgs& g) {
  const auto number = [](auto v) { return static_cast<int64_t>(v); };
  const auto place = [&](const Ref& r) { return number(reinterpret_cast<uintptr_t>(r.data) % 16); };
  Device& device = s.device();
  const auto gemm = kernels<GemmKernels>(s).gemm;
  const InOrder in_order(device,
                         device.kind() == DeviceKind::cuda && device.first_use({g.m,
                                                                                g.n,
                                                                                g.k,
                                                                                g.lda,
                                                                                g.ldb,
                                                                                g.ldc,
                                                                                g.trans_a,
                                                                                g.trans_b,
                                                                                g.beta != 0,
                                                                                g.gelu,
                                                                                g.gelu_backward,
                                                                                g.bias.data != nullptr,
                                                                                g.pre.data != nullptr,
                                                                                g.residual.data != nullptr,
                                                                                number(g.a.dtype),
                                                                                number(g.c.dtype),
                                                                                place(g.a),
                                                                                place(g.b),
                                                                                place(g.c),
                                                                                place(g.residual)}));
  queue(s, {what, WorkKind::product}, gemm, g);
}

}  // namespace

void gemm(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
          float alpha, float beta) {
  Check check("gemm");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, {DType::f32, a.dtype()}).done();
  g.alpha = alpha;
  g.beta = beta;
  queue_product(s, "gemm", g);
}

void gemm_columns(Stream& s, const Columns& c, const Columns& a, bool trans_a, const Columns& b, bool trans_b,
                  float beta) {
  Check check("gemm_columns");
  check.dims("A", a.matrix, 2)
      .dims("B", b.matrix, 2)
      .dims("C", c.matrix, 2)
      .dtype("A", a.matrix, kActivations);
  check.dtype("B", b.matrix, a.matrix.dtype()).dtype("C", c.matrix, {DType::f32, a.matrix.dtype()}).done();
  require_columns("gemm_columns", {&a, &b, &c});
  const auto rows = [](const Columns& o, bool trans) { return trans ? o.count : o.matrix.size(0); };
  const auto cols = [](const Columns& o, bool trans) { return trans ? o.matrix.size(0) : o.count; };
  GemmArgs g{.trans_a = trans_a, .trans_b = trans_b, .a = ref(a), .b = ref(b), .c = ref(c)};
  g.m = rows(a, trans_a);
  g.k = cols(a, trans_a);
  g.n = cols(b, trans_b);
  g.beta = beta;
  g.lda = ld(a);
  g.ldb = ld(b);
  g.ldc = ld(c);
  check
      .that(rows(b, trans_b) == g.k && c.matrix.size(0) == g.m && c.count == g.n,
            fmt::format("op(A) [{}, {}] times op(B) [{}, {}] is not C [{}, {}]", g.m, g.k, rows(b, trans_b),
                        g.n, c.matrix.size(0), c.count))
      .done();
  queue_product(s, "gemm_columns", g);
}

void gemm_bias(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
               const Tensor& bias) {
  Check check("gemm_bias");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("bias", bias, a.dtype()).count("bias", bias, g.n).done();
  g.bias = ref(bias);
  queue_product(s, "gemm_bias", g);
}

void gemm_gelu(Stream& s, const Tensor& c, const Tensor& pre, const Tensor& a, bool trans_a, const Tensor& b,
               bool trans_b, const Tensor& bias) {
  Check check("gemm_gelu");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype());
  if (pre.defined()) check.dtype("pre", pre, a.dtype()).shape("pre", pre, c.shape());
  if (bias.defined()) check.dtype("bias", bias, a.dtype()).count("bias", bias, g.n);
  check.done();
  require(!pre.defined() || pre.numel() == 0 || pre.raw() != c.raw(),
          "gemm_gelu: C and pre are the same tensor; use two, or leave pre undefined");
  g.gelu = true;
  if (pre.defined()) g.pre = ref(pre);
  if (bias.defined()) g.bias = ref(bias);
  queue_product(s, "gemm_gelu", g);
}

void gemm_add(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
              const Tensor& residual, const Tensor& bias) {
  Check check("gemm_add");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("residual", residual, a.dtype());
  if (bias.defined()) check.dtype("bias", bias, a.dtype()).count("bias", bias, g.n);
  check.shape("residual", residual, c.shape()).done();
  require(c.numel() == 0 || residual.raw() != c.raw(),
          "gemm_add: C and the residual are the same tensor; use two, or gemm with beta 1");
  g.residual = ref(residual);
  if (bias.defined()) g.bias = ref(bias);
  queue_product(s, "gemm_add", g);
}

void gemm_gelu_backward(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                        bool trans_b, const Tensor& pre) {
  Check check("gemm_gelu_backward");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("pre", pre, a.dtype()).shape("pre", pre, c.shape()).done();
  require(c.numel() == 0 || pre.raw() != c.raw(),
          "gemm_gelu_backward: C and pre are the same tensor; use two");
  g.gelu_backward = true;
  g.pre = ref(pre);
  queue_product(s, "gemm_gelu_backward", g);
}

}  // namespace sherd::ops
