#include <sherd/kernels/muon/muon.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/segments.h>
#include <sherd/kernels/rest/cpu_forms.h>

// The same fp32 operations as the reference, in the same order.

namespace sherd::cpu {
namespace {

/// Output of a segment that packs or copies nothing.
struct Nowhere {};
using cpu::store;
void store(Nowhere, float) {}
struct NowhereAt {
  Nowhere operator[](int64_t) const { return {}; }
  friend NowhereAt operator+(NowhereAt n, int64_t) { return n; }
};

struct Advance {
  float mu, l2;
  bool nesterov, moves;
  float factor;
};

template <class S, class G, class W, class T, class N, class Noise>
void momentum(S buffer, G gradient, W weight, T packed, N count, const Advance& advance, Noise noise) {
  const float mu = advance.mu, l2 = advance.l2, factor = advance.factor;
  const bool nesterov = advance.nesterov, moves = advance.moves;
  const float rate = 1 - mu;
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  auto one = [=](int64_t i, float g) {
    const float old = buffer.get(i), b = old + rate * (g - old);
    const float u = nesterov ? g + mu * (b - g) : b;
    const bool finite = std::abs(g) <= kLargest;
    // A stored value rounds to itself with any noise.
    buffer.put(i, finite && moves ? b : old, noise.template at<NoiseUse::first_state>(i));
    store(packed[i], finite ? u : kNan);
  };
  if (l2 == 0) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) one(i, gradient.get(i) * factor);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) one(i, gradient.get(i) * factor + l2 * weight.get(i));
  }
}

template <class W, class T, class Copy>
void update_piece(const UpdateSegment& s, int64_t b, int64_t e, W weight, const T* packed, Copy copy) {
  with_noise<W::kDraws>(s.noise, b, e, [&](int64_t first, auto count, const Drawn<W::kDraws>& noise) {
    const float decay = s.decay, alpha = s.alpha;
    const W to = weight.from(first);
    const T* from = packed + first;
    const auto copies = copy + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float w = decay * to.get(i) + alpha * float(from[i]);
      to.put(i, w, noise.template at<NoiseUse::weight>(i));
      store(copies[i], w);
    }
  });
}

template <class To, class From>
void convert(To* to, const From* from, int64_t count) {
  if constexpr (std::is_same_v<To, From>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(To));
  } else {
    cpu::round_each(to, count, [=](int64_t i) { return float(from[i]); });
  }
}

/// The elements [b, e) of a segment.
template <class S, class G, class W, class T>
void momentum_piece(const MomentumSegment& s, int64_t b, int64_t e, S buffer, G gradient, W weight, T packed,
                    const Advance& advance) {
  with_noise<S::kDraws>(s.noise, b, e, [&](int64_t i, auto n, const Drawn<S::kDraws>& noise) {
    const W weights = advance.l2 == 0 ? weight : weight.from(i);  // null where they are not read
    momentum(buffer.from(i), gradient.from(i), weights, packed + i, n, advance, noise);
  });
}

void muon_momentum(ExecutionContext& ctx, const MuonMomentumArgs& a) {
  const Advance advance{a.mu, a.l2, a.nesterov, !a.skip || *a.skip == 0, a.factor ? *a.factor : 1};
  with_payload(a.packed.dtype, [&](auto type) {
    const auto run = [&](auto state, auto gradients, auto weights) {
      for_segments(
          ctx, a.segments,
          [=, packed = a.packed.as<decltype(type)>()](const MomentumSegment& s, int64_t b, int64_t e) {
            const auto weight = weights(const_cast<void*>(s.weight), const_cast<uint16_t*>(s.low));
            const auto gradient = gradients(const_cast<void*>(s.gradient));
            if (s.at >= 0) {
              momentum_piece(s, b, e, state(s.buffer), gradient, weight, packed + s.at, advance);
            } else {
              momentum_piece(s, b, e, state(s.buffer), gradient, weight, NowhereAt{}, advance);
            }
          });
    };
    with_state(a.forms.state, [&](auto state) {
      with_state(a.forms.gradient, [&](auto gradients) {
        // Weights are read with l2 alone.
        with_weights(a.l2 == 0 ? Master::f32 : a.forms.master,
                     [&](auto weights) { run(state, gradients, weights); });
      });
    });
  });
}

void muon_update(ExecutionContext& ctx, const MuonUpdateArgs& a) {
  if (a.skip && *a.skip != 0) return;
  with_payload(a.packed.dtype, [&](auto type) {
    const auto* packed = a.packed.as<decltype(type)>();
    if (a.forms.master != Master::f32)
      return with_weights(a.forms.master, [&](auto weights) {
        for_segments(ctx, a.segments, [=](const UpdateSegment& s, int64_t b, int64_t e) {
          update_piece(s, b, e, weights(s.weight, s.low), packed + s.at, NowhereAt{});
        });
      });
    with_payload(a.copy_dtype, [&]<class T>(T) {
      for_segments(ctx, a.segments, [=](const UpdateSegment& s, int64_t b, int64_t e) {
        const InF32 weight{static_cast<float*>(s.weight)};
        if (s.copy != nullptr) {
          update_piece(s, b, e, weight, packed + s.at, static_cast<T*>(s.copy));
        } else {
          update_piece(s, b, e, weight, packed + s.at, NowhereAt{});
        }
      });
    });
  });
}

void copy_segments(ExecutionContext& ctx, const CopySegmentsArgs& a) {
  with_payload(a.to.dtype, [&](auto to_type) {
    with_payload(a.from.dtype, [&](auto from_type) {
      auto* to = a.to.as<decltype(to_type)>();
      const auto* from = a.from.as<decltype(from_type)>();
      for_segments(ctx, a.segments, [=](const CopySegment& s, int64_t b, int64_t e) {
        convert(to + s.to + b, from + s.from + b, e - b);
      });
    });
  });
}

template <class S>
bool all_finite(S values, int64_t count) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) bad |= !(std::abs(values.get(i)) <= std::numeric_limits<float>::max());
  return bad == 0;
}

void check_finite(ExecutionContext& ctx, const CheckFiniteArgs& a) {
  if (a.skip && *a.skip != 0) return;
  constexpr auto kFine = static_cast<int32_t>(MatrixStatus::fine);
  // Threads may share a matrix, so its status is atomic. All of them write the same value.
  with_state(a.dtype, [&](auto values) {
    for_segments(ctx, a.segments,
                 [=, found = static_cast<int32_t>(a.found)](const CheckedSegment& s, int64_t b, int64_t e) {
                   int32_t fine = kFine;
                   if (!all_finite(values(s.values).from(b), e - b))
                     std::atomic_ref<int32_t>(*s.status).compare_exchange_strong(fine, found);
                 });
  });
  if (!a.clears) return;
  std::vector<CheckedSegment> bad;
  for (const CheckedSegment& s : a.segments)
    if (s.count > 0 && *s.status != kFine) bad.push_back(s);
  for_segments(ctx, bad, [size = size_of(a.dtype)](const CheckedSegment& s, int64_t b, int64_t e) {
    std::memset(static_cast<char*>(s.values) + b * size, 0, static_cast<size_t>((e - b) * size));
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const MuonKernels* MuonKernels::cpu() {
  static constexpr MuonKernels table{
      .muon_momentum = cpu::muon_momentum,
      .muon_update = cpu::muon_update,
      .copy_segments = cpu::copy_segments,
      .check_finite = cpu::check_finite,
  };
  return &table;
}

}  // namespace sherd
