#include <sherd/nn/kernels/activation/activation.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

void activation_forward(Stream& s, Activation f, const Tensor& y, const Tensor& x) {
  Check check("activation_forward");
  check.dtype("x", x, kActivations).done();
  check.dtype("y", y, x.dtype()).count("y", y, x.numel()).done();
  queue(s, "activation_forward", kernels<ActivationKernels>(s).activation_forward, f, ref(y), ref(x),
        x.numel());
}

void activation_backward(Stream& s, Activation f, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  Check check("activation_backward");
  check.dtype("x", x, kActivations).done();
  check.dtype("dx", dx, x.dtype()).dtype("dy", dy, x.dtype());
  check.count("dx", dx, x.numel()).count("dy", dy, x.numel()).done();
  queue(s, "activation_backward", kernels<ActivationKernels>(s).activation_backward, f, ref(dx), ref(dy),
        ref(x), x.numel());
}

namespace {

/// Tensors of one shape as one long row.
SwigluArgs pair_args(Check& check, const Tensor& gate, const Tensor& up) {
  check.dtype("gate", gate, kActivations).done();
  check.dtype("up", up, gate.dtype()).shape("up", up, gate.shape());
  return {.rows = 1, .cols = gate.numel(), .stride = gate.numel(), .gate = ref(gate), .up = ref(up)};
}

Ref second_half(const Tensor& packed) {
  return {static_cast<char*>(packed.raw()) + packed.size(1) / 2 * size_of(packed.dtype()), packed.dtype()};
}

SwigluArgs packed_args(Check& check, const Tensor& gate_up) {
  check.dims("gate_up", gate_up, 2).dtype("gate_up", gate_up, kActivations);
  check.that(gate_up.size(1) % 2 == 0,
             fmt::format("gate_up is {}, must have an even number of columns", to_string(gate_up.shape())));
  check.done();
  return {.rows = gate_up.size(0),
          .cols = gate_up.size(1) / 2,
          .stride = gate_up.size(1),
          .gate = ref(gate_up),
          .up = second_half(gate_up)};
}

}  // namespace

void swiglu_forward(Stream& s, const Tensor& y, const Tensor& gate, const Tensor& up) {
  Check check("swiglu_forward");
  SwigluArgs a = pair_args(check, gate, up);
  check.dtype("y", y, gate.dtype()).shape("y", y, gate.shape()).done();
  a.y = ref(y);
  queue(s, "swiglu_forward", kernels<ActivationKernels>(s).swiglu_forward, a);
}

void swiglu_backward(Stream& s, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up) {
  Check check("swiglu_backward");
  SwigluArgs a = pair_args(check, gate, up);
  check.dtype("dgate", dgate, gate.dtype()).dtype("dup", dup, gate.dtype()).dtype("dy", dy, gate.dtype());
  check.shape("dgate", dgate, gate.shape())
      .shape("dup", dup, gate.shape())
      .shape("dy", dy, gate.shape())
      .done();
  a.dy = ref(dy);
  a.dgate = ref(dgate);
  a.dup = ref(dup);
  queue(s, "swiglu_backward", kernels<ActivationKernels>(s).swiglu_backward, a);
}

void swiglu_forward(Stream& s, const Tensor& y, const Tensor& gate_up) {
  Check check("swiglu_forward");
  SwigluArgs a = packed_args(check, gate_up);
  check.dtype("y", y, gate_up.dtype()).shape("y", y, {a.rows, a.cols}).done();
  a.y = ref(y);
  queue(s, "swiglu_forward", kernels<ActivationKernels>(s).swiglu_forward, a);
}

void swiglu_backward(Stream& s, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) {
  Check check("swiglu_backward");
  SwigluArgs a = packed_args(check, gate_up);
  check.dtype("dgate_up", dgate_up, gate_up.dtype()).shape("dgate_up", dgate_up, gate_up.shape());
  check.dtype("dy", dy, gate_up.dtype()).shape("dy", dy, {a.rows, a.cols}).done();
  a.dy = ref(dy);
  a.dgate = ref(dgate_up);
  a.dup = second_half(dgate_up);
  queue(s, "swiglu_backward", kernels<ActivationKernels>(s).swiglu_backward, a);
}

}  // namespace sherd::ops
