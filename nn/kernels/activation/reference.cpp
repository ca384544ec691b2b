#include <sherd/nn/kernels/activation/activation.h>

#include <cmath>
#include <numbers>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

/// Phi(x): the complement keeps its digits where the sum with erf would lose them.
double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double value(Activation f, double x) {
  switch (f) {
    case Activation::gelu_erf:
      return x * normal_distribution(x);
    case Activation::silu:
      return silu(x);
    case Activation::relu:
      return x < 0 ? 0 : x;
  }
  throw InvalidArgument("reference kernels: unknown activation");
}

double slope(Activation f, double x) {
  switch (f) {
    case Activation::gelu_erf:
      return normal_distribution(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    case Activation::silu:
      return silu_slope(x);
    case Activation::relu:
      return x <= 0 ? 0 : 1;
  }
  throw InvalidArgument("reference kernels: unknown activation");
}

void activation_forward(ExecutionContext&, Activation f, Ref y, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) put(y, i, value(f, get(x, i)));
}

void activation_backward(ExecutionContext&, Activation f, Ref dx, Ref dy, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) put(dx, i, get(dy, i) * slope(f, get(x, i)));
}

void swiglu_forward(ExecutionContext&, const SwigluArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      const int64_t in = r * a.stride + c;
      put(a.y, r * a.cols + c, silu(get(a.gate, in)) * get(a.up, in));
    }
}

void swiglu_backward(ExecutionContext&, const SwigluArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      const int64_t in = r * a.stride + c;
      const double dy = get(a.dy, r * a.cols + c), gate = get(a.gate, in), up = get(a.up, in);
      put(a.dgate, in, dy * up * silu_slope(gate));
      put(a.dup, in, dy * silu(gate));
    }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const ActivationKernels* ActivationKernels::reference() {
  static constexpr ActivationKernels table{
      .activation_forward = reference::activation_forward,
      .activation_backward = reference::activation_backward,
      .swiglu_forward = reference::swiglu_forward,
      .swiglu_backward = reference::swiglu_backward,
  };
  return &table;
}

}  // namespace sherd
