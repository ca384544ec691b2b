#include <sherd/nn/linear.h>

#include <fmt/format.h>

#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/packed_linear.h>
#include <sherd/nn/kernels/activation/activation.h>

namespace sherd::nn {
namespace {

using detail::like;

void bias_backward(Stream& s, const Parameter& bias, const Tensor& dy) {
  if (bias.defined() && !bias.frozen()) ops::bias_backward(s, bias.grad(), dy);
}

// dw += dy^T x; the first product of a step replaces what the memory holds (beta is 0 then).
void weight_backward(Stream& s, const Parameter& w, const Tensor& dy, const Tensor& x) {
  if (w.frozen()) return;
  const GradTarget dw = w.grad_for_overwrite();
  ops::gemm(s, dw.grad, dy, true, x, false, 1, dw.beta);
}

Tensor input_backward(Stream& s, const Parameter& w, const Tensor& dy) {
  Tensor dx = like(dy, {dy.size(0), w.shape()[1]});
  ops::gemm(s, dx, dy, false, w.data(), false);
  return dx;
}

std::vector<Parameter> both(const Parameter& w, const Parameter& bias) {
  return bias.defined() ? std::vector<Parameter>{w, bias} : std::vector<Parameter>{w};
}

}  // namespace

Var linear(const Var& x, const Parameter& w, const Parameter& bias) {
  const Tensor in = x.value();
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(in, {in.size(0), w.shape()[0]});
        if (bias.defined()) {
          ops::gemm_bias(s, y, in, false, w.data(), true, bias.data());
        } else {
          ops::gemm(s, y, in, false, w.data(), true);
        }
        return y;
      },
      [in, w, bias, rows = x.size(0)](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), {rows, w.shape()[0]}, in.dtype());
        weight_backward(s, w, dy, in);
        bias_backward(s, bias, dy);
        if (!call.wants(0)) return {Gradient()};
        return {input_backward(s, w, dy)};
      },
      both(w, bias));
}

Var linear_gelu(const Var& x, const Parameter& w, const Parameter& bias) {
  const Tensor in = x.value();
  const Tensor before = like(in, {in.size(0), w.shape()[0]});
  return function(
      {x},
      [&](Stream& s) {
        Tensor y = like(before);
        ops::gemm_gelu(s, y, before, in, false, w.data(), true, bias.defined() ? bias.data() : Tensor());
        return y;
      },
      [in, before, w, bias](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(before);
        const Tensor dbefore = like(before);
        ops::gelu_backward(s, dbefore, dy, before);
        weight_backward(s, w, dbefore, in);
        bias_backward(s, bias, dbefore);
        if (!call.wants(0)) return {Gradient()};
        return {input_backward(s, w, dbefore)};
      },
      both(w, bias));
}

Var gelu_mlp(const Var& x, const Parameter& up, const Parameter& down, const Var& residual) {
  return detail::gelu_mlp(residual, x, {up, {}}, {down, {}}, detail::WeightLayout::out_in);
}

Var add_linear(const Var& residual, const Var& x, const Parameter& w) {
  return detail::add_affine(residual, x, {w, {}});
}

Var swiglu_linear(const Var& gate_up, const Parameter& down, const Var& residual) {
  const Tensor in = gate_up.value();
  if (in.dim() != 2 || in.size(1) != 2 * down.shape()[1])
    throw ShapeMismatch(
        fmt::format("swiglu_linear: gate and up side by side are {}, must be [rows, {}] for weights {}",
                    to_string(in.shape()), 2 * down.shape()[1], to_string(down.shape())));
  const auto gated = [in](Stream& s) {
    Tensor hidden = like(in, {in.size(0), in.size(1) / 2});
    ops::swiglu_forward(s, hidden, in);
    return hidden;
  };
  std::vector<Var> inputs{gate_up};
  if (residual.defined()) inputs.push_back(residual);
  return function(
      inputs,
      [&](Stream& s) {
        Tensor y = like(in, {in.size(0), down.shape()[0]});
        if (residual.defined()) {
          ops::gemm_add(s, y, gated(s), false, down.data(), true, residual.value());
        } else {
          ops::gemm(s, y, gated(s), false, down.data(), true);
        }
        return y;
      },
      [in, gated, down](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), {in.size(0), down.shape()[0]}, in.dtype());
        weight_backward(s, down, dy, gated(s));
        std::vector<Gradient> gradients(call.inputs());
        if (call.wants(0)) {
          const Tensor dx = like(in);
          ops::swiglu_backward(s, dx, input_backward(s, down, dy), in);
          gradients[0] = dx;
        }
        if (call.inputs() == 2) gradients[1] = call.output();
        return gradients;
      },
      {down});
}

}  // namespace sherd::nn
