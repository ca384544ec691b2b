#include <sherd/kernels/optimizer/optimizer.h>

#include <sherd/kernels/device/cuda/segments.h>
#include <sherd/kernels/rest/cuda_forms.h>

// The same fp32 operations as the reference, each rounded by itself, in the same order. 28 bytes of memory traffic per element
// and those of the copy in f32, 16 with weights and states in bf16.

namespace sherd::cuda {
namespace {

/// Same as power() of the reference: the same double operations.
__device__ double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, base = __dmul_rn(base, base))
    if (n % 2 == 1) result = __dmul_rn(result, base);
  return result;
}

__global__ void count_steps(AdamWCountArgs a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < a.count; i += int64_t{gridDim.x} * blockDim.x) {
    const float steps = fminf(__fadd_rn(a.steps[i], 1.0f), 0x1p24f);
    const auto n = static_cast<int64_t>(steps);
    a.steps[i] = steps;
    if (a.biases == nullptr) continue;
    a.biases[i].step_size = static_cast<float>(__ddiv_rn(a.lr, __dsub_rn(1.0, power(a.beta1, n))));
    a.biases[i].root = static_cast<float>(__dsqrt_rn(__dsub_rn(1.0, power(a.beta2, n))));
  }
}

/// Factors that all parameters share, rounded to fp32 once.
struct Rates {
  float weight1, beta2, weight2, eps;
  AdamWBias bias;
  const AdamWBias* biases;
  const int64_t* skip;
  const float* factor;

  __device__ bool nothing_to_do() const { return skip != nullptr && *skip != 0; }
};

template <class W, class S, class Copy>
struct AdamW {
  static constexpr int kVec = 4;
  static constexpr bool kDraws = W::kDraws || S::kDraws;
  W w;
  S m, v;
  ReadWeights g;  // gradients
  Copy* copy;     // may be null
  float decay;
  int32_t bias;
  KeptNoise<kDraws> noise;

  Cover cover_of(int64_t count) const {
    return cover<kVec>(count, w.bound(), w.low_bound(), m.bound(), v.bound(), g.whole_bound(), g.bound(),
                       copy);
  }

  template <int N>
  __device__ void run(int64_t i, const Rates& r) const {
    const AdamWBias b = r.biases == nullptr ? r.bias : r.biases[bias];
    Vec<float, N> wi = w.template get<N>(i), mi = m.template get<N>(i), vi = v.template get<N>(i);
    Vec<float, N> gi = g.template get<N>(i);
    const float factor = r.factor == nullptr ? 1.0f : *r.factor;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      gi[k] = __fmul_rn(gi[k], factor);
      mi[k] = __fadd_rn(mi[k], __fmul_rn(r.weight1, __fsub_rn(gi[k], mi[k])));
      vi[k] = __fadd_rn(__fmul_rn(r.beta2, vi[k]), __fmul_rn(__fmul_rn(r.weight2, gi[k]), gi[k]));
      const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(vi[k]), b.root), r.eps);
      wi[k] = __fsub_rn(__fmul_rn(wi[k], decay), __fdiv_rn(__fmul_rn(b.step_size, mi[k]), root));
    }
    const auto drawn = noise.template draw<N>(i);
    w.put(i, wi, drawn, NoiseUse::weight);
    m.put(i, mi, drawn, NoiseUse::first_state);
    v.put(i, vi, drawn, NoiseUse::second_state);
    if (copy == nullptr) return;
    Vec<Copy, N> c;
#pragma unroll
    for (int k = 0; k < N; ++k) put(c[k], wi[k]);
    store(copy, i, c);
  }
};

struct Averaging {
  float rate;
  const int64_t* skip;

  __device__ bool nothing_to_do() const { return skip != nullptr && *skip != 0; }
};

template <class S>
struct AverageOp {
  static constexpr int kVec = 4;
  S average;
  ReadWeights w;
  KeptNoise<S::kDraws> noise;

  Cover cover_of(int64_t count) const {
    return cover<kVec>(count, average.bound(), w.whole_bound(), w.bound(), w.low);
  }

  template <int N>
  __device__ void run(int64_t i, const Averaging& a) const {
    Vec<float, N> to = average.template get<N>(i);
    const Vec<float, N> wi = w.template get<N>(i);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = __fadd_rn(to[k], __fmul_rn(a.rate, __fsub_rn(wi[k], to[k])));
    average.put(i, to, noise.template draw<N>(i), NoiseUse::first_state);
  }
};

void adamw_count(ExecutionContext& context, const AdamWCountArgs& a) {
  if (a.count <= 0) return;
  launch(context, "adamw_count", count_steps, grid_for(a.count, 16), a);
}

void adamw(ExecutionContext& context, const AdamWArgs& a) {
  const Rates rates{.weight1 = static_cast<float>(1 - a.beta1),
                    .beta2 = static_cast<float>(a.beta2),
                    .weight2 = static_cast<float>(1 - a.beta2),
                    .eps = static_cast<float>(a.eps),
                    .bias = a.bias,
                    .biases = a.biases,
                    .skip = a.skip,
                    .factor = a.factor};
  const auto run = [&](auto weights, auto state, auto copy) {
    using Op = AdamW<decltype(weights(nullptr, nullptr)), decltype(state(nullptr)), decltype(copy)>;
    for_segments<Op>(context, "adamw", a.segments, rates, [&](const AdamWSegment& s) {
      return Op{.w = weights(s.w, s.low),
                .m = state(s.m),
                .v = state(s.v),
                .g = read_gradients(a.forms, s.g),
                .copy = static_cast<decltype(copy)*>(s.copy),
                .decay = static_cast<float>(1 - a.lr * s.weight_decay),
                .bias = static_cast<int32_t>(s.bias),
                .noise = KeptNoise<Op::kDraws>{s.noise}};
    });
  };
  with_state(a.forms.state, [&](auto state) {
    with_weights(a.forms.master, [&](auto weights) {
      if constexpr (std::is_same_v<decltype(weights(nullptr, nullptr)), InF32>) {
        with_payload(a.copy_dtype, [&](auto copy) { run(weights, state, copy); });
      } else {
        run(weights, state, float{});
      }
    });
  });
}

void average(ExecutionContext& context, const AverageArgs& a) {
  with_state(a.forms.state, [&](auto state) {
    using Op = AverageOp<decltype(state(nullptr))>;
    for_segments<Op>(context, "average", a.segments, Averaging{a.rate, a.skip}, [&](const AverageSegment& s) {
      return Op{state(s.average), {a.forms.master, s.w, s.low}, decltype(Op::noise){s.noise}};
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const OptimizerKernels* OptimizerKernels::cuda() {
  static constexpr OptimizerKernels table{
      .adamw_count = cuda::adamw_count, .adamw = cuda::adamw, .average = cuda::average};
  return &table;
}

}  // namespace sherd
