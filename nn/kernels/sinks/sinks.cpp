#include <sherd/nn/kernels/sinks/sinks.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

SinksArgs sinks_args(Check& check, const Tensor& out, const Tensor& lse, const Tensor& sinks) {
  check.dims("lse", lse, 3).dims("out", out, 2).dtype("out", out, kActivations);
  check.dtype("lse", lse, DType::f32).dtype("sinks", sinks, DType::f32).done();
  const int64_t batch = lse.size(0), heads = lse.size(1), seq = lse.size(2);
  check.shape("sinks", sinks, {heads});
  check.that(
      out.size(0) == batch * seq && heads > 0 && out.size(1) % heads == 0,
      fmt::format("out is {}, must be [{} x {}, {} x head_dim]", to_string(out.shape()), batch, seq, heads));
  check.done();
  return {.batch = batch,
          .seq = seq,
          .heads = heads,
          .head_dim = out.size(1) / heads,
          .out = ref(out),
          .lse = lse.data<float>(),
          .sinks = sinks.data<float>()};
}

}  // namespace

void sinks_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& sinks) {
  Check check("sinks_forward");
  queue(s, "sinks_forward", kernels<SinksKernels>(s).sinks_forward, sinks_args(check, out, lse, sinks));
}

void sinks_backward(Stream& s, const Tensor& dsinks, const Tensor& dout, const Tensor& out, const Tensor& lse,
                    const Tensor& sinks) {
  Check check("sinks_backward");
  SinksArgs a = sinks_args(check, out, lse, sinks);
  check.dtype("dout", dout, out.dtype()).dtype("dsinks", dsinks, DType::f32);
  check.shape("dout", dout, out.shape()).shape("dsinks", dsinks, sinks.shape()).done();
  a.dout = ref(dout);
  a.dsinks = dsinks.data<float>();
  queue(s, "sinks_backward", kernels<SinksKernels>(s).sinks_backward, a);
}

}  // namespace sherd::ops
