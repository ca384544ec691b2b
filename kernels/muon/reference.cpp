#include <sherd/kernels/muon/muon.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/rest/detail/reference_forms.h>

namespace sherd::reference {
namespace {

// Single fp32 operations in the stated order; other tables must give the same bits.

void muon_momentum(ExecutionContext&, const MuonMomentumArgs& a) {
  const float rate = 1 - a.mu;
  const bool moves = !a.skip || *a.skip == 0;
  const float factor = a.factor ? *a.factor : 1;
  for (const MomentumSegment& s : a.segments) {
    const StateAt buffer{{s.buffer, a.forms.state}};
    const WeightsAt weights{a.forms.master, const_cast<void*>(s.weight), const_cast<uint16_t*>(s.low)};
    const Ref gradients{const_cast<void*>(s.gradient), a.forms.gradient};
    for (int64_t i = 0; i < s.count; ++i) {
      const float scaled = static_cast<float>(get(gradients, i)) * factor;
      const float g = a.l2 == 0 ? scaled : scaled + a.l2 * weights.get(i);
      if (!std::isfinite(g)) {
        if (s.at >= 0) put(a.packed, s.at + i, std::numeric_limits<double>::quiet_NaN());
        continue;
      }
      const float old = buffer.get(i), moved = old + rate * (g - old);
      if (moves) buffer.put(i, moved, s.noise, NoiseUse::first_state);
      if (s.at >= 0) put(a.packed, s.at + i, a.nesterov ? g + a.mu * (moved - g) : moved);
    }
  }
}

void muon_update(ExecutionContext&, const MuonUpdateArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (const UpdateSegment& s : a.segments) {
    const WeightsAt weights{a.forms.master, s.weight, s.low};
    for (int64_t i = 0; i < s.count; ++i) {
      const float w = s.decay * weights.get(i) + s.alpha * static_cast<float>(get(a.packed, s.at + i));
      weights.put(i, w, s.noise);
      if (s.copy != nullptr) put({s.copy, a.copy_dtype}, i, w);
    }
  }
}

void copy_segments(ExecutionContext&, const CopySegmentsArgs& a) {
  for (const CopySegment& s : a.segments)
    for (int64_t i = 0; i < s.count; ++i) put(a.to, s.to + i, get(a.from, s.from + i));
}

void check_finite(ExecutionContext&, const CheckFiniteArgs& a) {
  if (a.skip && *a.skip != 0) return;
  const auto fine = static_cast<int32_t>(MatrixStatus::fine);
  for (const CheckedSegment& s : a.segments)
    for (int64_t i = 0; i < s.count; ++i)
      if (!std::isfinite(get({s.values, a.dtype}, i)) && *s.status == fine)
        *s.status = static_cast<int32_t>(a.found);
  for (const CheckedSegment& s : a.segments)
    for (int64_t i = 0; a.clears && *s.status != fine && i < s.count; ++i) put({s.values, a.dtype}, i, 0);
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const MuonKernels* MuonKernels::reference() {
  static constexpr MuonKernels table{
      .muon_momentum = reference::muon_momentum,
      .muon_update = reference::muon_update,
      .copy_segments = reference::copy_segments,
      .check_finite = reference::check_finite,
  };
  return &table;
}

}  // namespace sherd
