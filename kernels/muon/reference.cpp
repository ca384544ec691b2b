#include <sherd/kernels/muon/muon.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

// Single fp32 operations in the stated order; other tables must give the same bits.

void muon_momentum(ExecutionContext&, const MuonMomentumArgs& a) {
  const float rate = 1 - a.mu;
  const bool moves = !a.skip || *a.skip == 0;
  const float factor = a.factor ? *a.factor : 1;
  for (const MomentumSegment& s : a.segments) {
    for (int64_t i = 0; i < s.count; ++i) {
      const float scaled = s.gradient[i] * factor;
      const float g = a.l2 == 0 ? scaled : scaled + a.l2 * s.weight[i];
      if (!std::isfinite(g)) {
        if (s.at >= 0) put(a.packed, s.at + i, std::numeric_limits<double>::quiet_NaN());
        continue;
      }
      const float moved = s.buffer[i] + rate * (g - s.buffer[i]);
      if (moves) s.buffer[i] = moved;
      if (s.at >= 0) put(a.packed, s.at + i, a.nesterov ? g + a.mu * (moved - g) : moved);
    }
  }
}

void muon_update(ExecutionContext&, const MuonUpdateArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (const UpdateSegment& s : a.segments)
    for (int64_t i = 0; i < s.count; ++i) {
      s.weight[i] = s.decay * s.weight[i] + s.alpha * static_cast<float>(get(a.packed, s.at + i));
      if (s.copy != nullptr) put({s.copy, a.copy_dtype}, i, s.weight[i]);
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
      if (!std::isfinite(s.values[i]) && *s.status == fine) *s.status = static_cast<int32_t>(a.found);
  for (const CheckedSegment& s : a.segments)
    if (a.clears && s.count > 0 && *s.status != fine) std::fill_n(s.values, s.count, 0.0f);
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
