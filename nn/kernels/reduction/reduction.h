// Sums and maxima along one dimension. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// max is NaN where an element is.
enum class Reduction : uint8_t { sum, max };

/// out[o, k, i] = factor * the sum, or the maximum, of x[o, j, i] over j in [k * chunk, (k + 1) * chunk): x [outer, n,
/// inner], out [outer, ceil(n / chunk), inner] in the dtype of x, f32 or f64. Sums are added up in fp32 over short
/// runs, and runs in double; the order depends on the sizes alone. The factor (1 for maxima) is applied to the sum
/// before it is rounded.
struct ReductionArgs {
  Reduction op = Reduction::sum;
  int64_t outer = 0, n = 0, inner = 0, chunk = 1;
  double factor = 1;
  Ref x{}, out{};

  int64_t chunks() const { return (n + chunk - 1) / chunk; }
};

inline Work work_of(const Device&, const ReductionArgs& a) {
  return {.bytes =
              bytes_of({a.x}, a.outer * a.n * a.inner) + bytes_of({a.out}, a.outer * a.chunks() * a.inner)};
}

struct ReductionKernels {
  static constexpr const char* kName = "reduction";
  static const ReductionKernels* reference();
  static const ReductionKernels* cpu();
  static const ReductionKernels* cuda();

  void (*reduce)(ExecutionContext&, const ReductionArgs&);
};

namespace ops {

/// out [outer, inner] = factor * the sum of x [outer, n, inner] along n, or the maximum; shapes are given by counts of
/// elements. out has the dtype of x, or is f32. A sum over no elements is 0.
/// @throws ShapeMismatch for a maximum over no elements, or with a factor.
void reduce_dim(Stream& s, Reduction op, const Tensor& out, const Tensor& x, int64_t outer, int64_t n,
                int64_t inner, double factor = 1);

}  // namespace ops
}  // namespace sherd
