#include <cmath>

#include "cuda.h"
#include "vector.h"

// The same fp32 operations as the reference, each rounded by itself, in the same order. 28 bytes of memory
// traffic per element and those of the copy.

namespace sherd::cuda {
namespace {

/// No copy.
struct None {};

template <class Copy>
struct AdamW {
  static constexpr int kVec = 4;
  float *w, *m, *v;
  const float* g;
  Copy* copy;
  float decay, weight1, beta2, weight2, step, root_bias2, eps;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<float, N> wi = load<N>(w, i), mi = load<N>(m, i), vi = load<N>(v, i);
    const Vec<float, N> gi = load<N>(g, i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      mi[k] = __fadd_rn(mi[k], __fmul_rn(weight1, __fsub_rn(gi[k], mi[k])));
      vi[k] = __fadd_rn(__fmul_rn(beta2, vi[k]), __fmul_rn(__fmul_rn(weight2, gi[k]), gi[k]));
      const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(vi[k]), root_bias2), eps);
      wi[k] = __fsub_rn(__fmul_rn(wi[k], decay), __fdiv_rn(__fmul_rn(step, mi[k]), root));
    }
    store(w, i, wi);
    store(m, i, mi);
    store(v, i, vi);
    if constexpr (!std::is_same_v<Copy, None>) {
      Vec<Copy, N> c;
#pragma unroll
      for (int k = 0; k < N; ++k) put(c[k], wi[k]);
      store(copy, i, c);
    }
  }
};

template <class Copy>
void update(ExecutionContext& context, const AdamWArgs& a) {
  const AdamW<Copy> op{.w = a.w,
                       .m = a.m,
                       .v = a.v,
                       .g = a.g,
                       .copy = a.copy.as<Copy>(),
                       .decay = static_cast<float>(1 - a.lr * a.weight_decay),
                       .weight1 = static_cast<float>(1 - a.beta1),
                       .beta2 = static_cast<float>(a.beta2),
                       .weight2 = static_cast<float>(1 - a.beta2),
                       .step = static_cast<float>(a.lr / a.bias1),
                       .root_bias2 = static_cast<float>(std::sqrt(a.bias2)),
                       .eps = static_cast<float>(a.eps)};
  for_elements(context, "adamw", op, a.count, a.w, a.m, a.v, a.g, op.copy);
}

}  // namespace

void adamw(ExecutionContext& context, const AdamWArgs& a) {
  if (a.copy.data == nullptr) return update<None>(context, a);
  with_payload(a.copy.dtype, [&]<class T>(T) { update<T>(context, a); });
}

}  // namespace sherd::cuda
