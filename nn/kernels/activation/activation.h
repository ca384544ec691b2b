// Activation functions and SwiGLU. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// gelu_erf: x Phi(x) = x/2 (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016); silu: x / (1 + e^-x) (Elfwing et al.,
/// 2017); relu: max(x, 0), whose slope at 0 is 0.
enum class Activation : uint8_t { gelu_erf, silu, relu };

/// y = silu(gate) * up; y, dy [rows, cols] dense, the others rows of `cols` elements that begin `stride`
/// elements apart. (SwiGLU: Shazeer, GLU Variants Improve Transformer, 2020.) Backward: dgate = dy * up *
/// silu'(gate), dup = dy * silu(gate), with rows as those of gate and up.
struct SwigluArgs {
  int64_t rows = 0, cols = 0, stride = 0;
  Ref gate{}, up{}, y{};
  Ref dy{}, dgate{}, dup{};  // backward
};

inline Work work_of(const Device&, const SwigluArgs& a) {
  return {.bytes = bytes_of({a.gate, a.up, a.y, a.dy, a.dgate, a.dup}, a.rows * a.cols)};
}

struct ActivationKernels {
  static constexpr const char* kName = "activation";
  static const ActivationKernels* reference();
  static const ActivationKernels* cpu();
  static const ActivationKernels* cuda();

  void (*activation_forward)(ExecutionContext&, Activation, Ref y, Ref x, int64_t count);
  void (*activation_backward)(ExecutionContext&, Activation, Ref dx, Ref dy, Ref x, int64_t count);
  void (*swiglu_forward)(ExecutionContext&, const SwigluArgs&);
  void (*swiglu_backward)(ExecutionContext&, const SwigluArgs&);
};

namespace ops {

/// y = f(x); y may be x.
void activation_forward(Stream& s, Activation f, const Tensor& y, const Tensor& x);
/// dx = dy * f'(x); dx may be dy.
void activation_backward(Stream& s, Activation f, const Tensor& dx, const Tensor& dy, const Tensor& x);

/// y = silu(gate) * up, of one shape and dtype.
void swiglu_forward(Stream& s, const Tensor& y, const Tensor& gate, const Tensor& up);
/// dgate and dup may be gate and up, or dy one of the two.
void swiglu_backward(Stream& s, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up);
/// The same for gate and up side by side, as one product with fused weights gives them: gate_up [rows, 2 * cols], y
/// [rows, cols].
void swiglu_forward(Stream& s, const Tensor& y, const Tensor& gate_up);
/// dgate_up may be gate_up.
void swiglu_backward(Stream& s, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up);

}  // namespace ops
}  // namespace sherd
