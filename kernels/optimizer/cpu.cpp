#include <sherd/kernels/optimizer/optimizer.h>

#include <cmath>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/segments.h>
#include <sherd/kernels/rest/cpu_forms.h>

namespace sherd::cpu {
namespace {

// The same fp32 operations as the reference, in the same order.

/// Factors of a segment's step, rounded to fp32 once.
struct Step {
  float decay, weight1, beta2, weight2, step, root_bias2, eps, factor;
};

/// copy[i] = w, for types of copies that are there.
struct NoCopy {
  void put(int64_t, float) const {}
  NoCopy from(int64_t) const { return {}; }
};
template <class T>
struct CopyTo {
  T* to;
  void put(int64_t i, float w) const { store(to[i], w); }
  CopyTo from(int64_t i) const { return {to + i}; }
};

struct Element {
  float w, m, v;
};
inline Element updated(const Step& s, float w, float m, float v, float gradient) {
  const float g = gradient * s.factor;
  const float mi = m + s.weight1 * (g - m);
  const float vi = s.beta2 * v + s.weight2 * g * g;
  return {w * s.decay - s.step * mi / (std::sqrt(vi) / s.root_bias2 + s.eps), mi, vi};
}

template <class W, class S, class G, class N, class Copy, class Noise>
void update(W w, S m, S v, G g, N count, const Step& step, Copy copy, Noise noise) {
  const Step s = step;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Element e = updated(s, w.get(i), m.get(i), v.get(i), g.get(i));
    m.put(i, e.m, noise.template at<NoiseUse::first_state>(i));
    v.put(i, e.v, noise.template at<NoiseUse::second_state>(i));
    w.put(i, e.w, noise.template at<NoiseUse::weight>(i));
    copy.put(i, e.w);
  }
}

/// The elements [b, e) of a segment.
template <class W, class S, class G, class Copy>
void update_piece(const AdamWSegment& s, int64_t b, int64_t e, const Step& step, W w, S m, S v, G g,
                  Copy copy) {
  constexpr bool kDraws = W::kDraws || S::kDraws;
  with_noise<kDraws>(s.noise, b, e, [&](int64_t i, auto n, const Drawn<kDraws>& noise) {
    update(w.from(i), m.from(i), v.from(i), g.from(i), n, step, copy.from(i), noise);
  });
}

/// Calls f(segment, begin, end, its factors) for pieces of all segments.
template <class F>
void for_updates(ExecutionContext& ctx, const AdamWArgs& a, F f) {
  const Step all{.decay = 1,
                 .weight1 = static_cast<float>(1 - a.beta1),
                 .beta2 = static_cast<float>(a.beta2),
                 .weight2 = static_cast<float>(1 - a.beta2),
                 .step = 0,
                 .root_bias2 = 1,
                 .eps = static_cast<float>(a.eps),
                 .factor = a.factor ? *a.factor : 1};
  for_segments(ctx, a.segments, [&](const AdamWSegment& s, int64_t b, int64_t e) {
    const AdamWBias bias = a.biases ? a.biases[s.bias] : a.bias;
    Step step = all;
    step.decay = static_cast<float>(1 - a.lr * s.weight_decay);
    step.step = bias.step_size;
    step.root_bias2 = bias.root;
    f(s, b, e, step);
  });
}

void adamw(ExecutionContext& ctx, const AdamWArgs& a) {
  if (a.skip && *a.skip != 0) return;
  const auto run = [&](auto state, auto gradients) {
    with_weights(a.forms.master, [&](auto weights) {
      if constexpr (std::is_same_v<decltype(weights(nullptr, nullptr)), InF32>) {
        with_payload(a.copy_dtype, [&]<class T>(T) {
          for_updates(ctx, a, [=](const AdamWSegment& s, int64_t b, int64_t e, const Step& step) {
            const auto piece = [&](auto copy) {
              update_piece(s, b, e, step, weights(s.w, s.low), state(s.m), state(s.v),
                           gradients(const_cast<void*>(s.g)), copy);
            };
            s.copy != nullptr ? piece(CopyTo<T>{static_cast<T*>(s.copy)}) : piece(NoCopy{});
          });
        });
      } else {
        for_updates(ctx, a, [=](const AdamWSegment& s, int64_t b, int64_t e, const Step& step) {
          update_piece(s, b, e, step, weights(s.w, s.low), state(s.m), state(s.v),
                       gradients(const_cast<void*>(s.g)), NoCopy{});
        });
      }
    });
  };
  with_state(a.forms.state, [&](auto state) {
    with_state(a.forms.gradient, [&](auto gradients) { run(state, gradients); });
  });
}

void average(ExecutionContext& ctx, const AverageArgs& a) {
  if (a.skip && *a.skip != 0) return;
  with_state(a.forms.state, [&](auto state) {
    with_weights(a.forms.master, [&](auto weights) {
      for_segments(ctx, a.segments, [=, rate = a.rate](const AverageSegment& s, int64_t b, int64_t e) {
        const auto w = weights(s.w, s.low);
        const auto averages = state(s.average);
        constexpr bool kDraws = decltype(state(nullptr))::kDraws;
        with_noise<kDraws>(s.noise, b, e, [&](int64_t first, auto count, const Drawn<kDraws>& noise) {
          const auto from = w.from(first);
          const auto to = averages.from(first);
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) {
            const float old = to.get(i);
            to.put(i, old + rate * (from.get(i) - old), noise.template at<NoiseUse::first_state>(i));
          }
        });
      });
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const OptimizerKernels* OptimizerKernels::cpu() {
  static const OptimizerKernels table{
      .adamw_count = reference()->adamw_count, .adamw = cpu::adamw, .average = cpu::average};
  return &table;
}

}  // namespace sherd
