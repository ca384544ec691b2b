#include <cmath>
#include <numbers>

#include "reference.h"

namespace sherd::reference {
namespace {

const double kRoot = std::sqrt(2 / std::numbers::pi);

double tanh_argument(double x) { return kRoot * (x + 0.044715 * x * x * x); }

}  // namespace

void gelu_forward(ExecutionContext&, Ref y, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = get(x, i);
    put(y, i, 0.5 * v * (1 + std::tanh(tanh_argument(v))));
  }
}

void gelu_backward(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = get(x, i);
    const double t = std::tanh(tanh_argument(v));
    const double slope = kRoot * (1 + 3 * 0.044715 * v * v);
    put(dx, i, get(dy, i) * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope));
  }
}

}  // namespace sherd::reference
