#include <sherd/kernels/muon/muon.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/segments.h>

// The same fp32 operations as the reference, in the same order.

namespace sherd::cpu {
namespace {

/// Output of a segment that packs or copies nothing.
struct Nowhere {};
using cpu::store;
void store(Nowhere, float) {}
struct NowhereAt {
  Nowhere operator[](int64_t) const { return {}; }
};

template <class T>
void momentum(float* buffer, const float* gradient, const float* weight, T packed, int64_t count, float mu,
              float l2, bool nesterov, bool moves, float factor) {
  const float rate = 1 - mu;
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  auto one = [=](int64_t i, float g) {
    const float old = buffer[i], b = old + rate * (g - old);
    const float u = nesterov ? g + mu * (b - g) : b;
    const bool finite = std::abs(g) <= kLargest;
    buffer[i] = finite && moves ? b : old;
    store(packed[i], finite ? u : kNan);
  };
  if (l2 == 0) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) one(i, gradient[i] * factor);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) one(i, gradient[i] * factor + l2 * weight[i]);
  }
}

template <class T, class Copy>
void update(float* weight, const T* packed, int64_t count, float decay, float alpha, Copy copy) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = decay * weight[i] + alpha * float(packed[i]);
    weight[i] = w;
    store(copy[i], w);
  }
}

template <class To, class From>
void convert(To* to, const From* from, int64_t count) {
  if constexpr (std::is_same_v<To, From>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(To));
  } else {
    cpu::round_each(to, count, [=](int64_t i) { return float(from[i]); });
  }
}

void muon_momentum(ExecutionContext& ctx, const MuonMomentumArgs& a) {
  with_payload(a.packed.dtype, [&](auto type) {
    auto* packed = a.packed.as<decltype(type)>();
    for_segments(ctx, a.segments,
                 [=, mu = a.mu, l2 = a.l2, nesterov = a.nesterov, moves = !a.skip || *a.skip == 0,
                  factor = a.factor ? *a.factor : 1](const MomentumSegment& s, int64_t b, int64_t e) {
                   const float* weight = l2 == 0 ? nullptr : s.weight + b;
                   if (s.at >= 0) {
                     momentum(s.buffer + b, s.gradient + b, weight, packed + s.at + b, e - b, mu, l2,
                              nesterov, moves, factor);
                   } else {
                     momentum(s.buffer + b, s.gradient + b, weight, NowhereAt{}, e - b, mu, l2, nesterov,
                              moves, factor);
                   }
                 });
  });
}

void muon_update(ExecutionContext& ctx, const MuonUpdateArgs& a) {
  if (a.skip && *a.skip != 0) return;
  with_payload(a.packed.dtype, [&](auto type) {
    const auto* packed = a.packed.as<decltype(type)>();
    with_payload(a.copy_dtype, [&]<class T>(T) {
      for_segments(ctx, a.segments, [=](const UpdateSegment& s, int64_t b, int64_t e) {
        if (s.copy != nullptr) {
          update(s.weight + b, packed + s.at + b, e - b, s.decay, s.alpha, static_cast<T*>(s.copy) + b);
        } else {
          update(s.weight + b, packed + s.at + b, e - b, s.decay, s.alpha, NowhereAt{});
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

bool all_finite(const float* values, int64_t count) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) bad |= !(std::abs(values[i]) <= std::numeric_limits<float>::max());
  return bad == 0;
}

void check_finite(ExecutionContext& ctx, const CheckFiniteArgs& a) {
  if (a.skip && *a.skip != 0) return;
  constexpr auto kFine = static_cast<int32_t>(MatrixStatus::fine);
  // Threads may share a matrix, so its status is atomic. All of them write the same value.
  for_segments(ctx, a.segments,
               [found = static_cast<int32_t>(a.found)](const CheckedSegment& s, int64_t b, int64_t e) {
                 int32_t fine = kFine;
                 if (!all_finite(s.values + b, e - b))
                   std::atomic_ref<int32_t>(*s.status).compare_exchange_strong(fine, found);
               });
  if (!a.clears) return;
  std::vector<CheckedSegment> bad;
  for (const CheckedSegment& s : a.segments)
    if (s.count > 0 && *s.status != kFine) bad.push_back(s);
  for_segments(ctx, bad,
               [](const CheckedSegment& s, int64_t b, int64_t e) { std::fill_n(s.values + b, e - b, 0.0f); });
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
