#include <sherd/nn/kernels/strided/strided.h>

#include <cmath>

#include <sherd/kernels/device/reference/access.h>

#include "cpu_functions.h"

namespace sherd::reference {
namespace {

struct DoubleMath {
  using Number = double;
  static double exp(double x) { return std::exp(x); }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double tanh(double x) { return std::tanh(x); }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static double pow(double x, double y) { return std::pow(x, y); }
};

// In f32 a sum, product, quotient or root has the bits of one rounding: double has more than twice the digits.
void map(ExecutionContext&, const MapArgs& a) {
  host::with_map_function<DoubleMath>(a.function, [&](auto f) {
    for (int64_t i = 0; i < a.count(); ++i) {
      int64_t index[kMapDims], rest = i;
      for (int d = a.dims - 1; d >= 0; rest /= a.sizes[d--]) index[d] = rest % a.sizes[d];
      const auto place = [&](const MapOperand& o) {
        int64_t at = 0;
        for (int d = 0; d < a.dims; ++d) at += index[d] * o.strides[d];
        return at;
      };
      const auto in = [&](const MapOperand& o) { return o.ref.data ? get(o.ref, place(o)) : o.value; };
      put(a.out.ref, place(a.out), f(in(a.in[0]), in(a.in[1]), in(a.in[2])));
    }
  });
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const StridedKernels* StridedKernels::reference() {
  static constexpr StridedKernels table{.map = reference::map};
  return &table;
}

}  // namespace sherd
