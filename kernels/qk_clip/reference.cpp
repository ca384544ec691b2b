#include <sherd/kernels/qk_clip/qk_clip.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/rest/detail/reference_forms.h>

namespace sherd::reference {
namespace {

// Single fp32 operations, rounded one by one: other tables must give the same bits.

void qk_clip_factors(ExecutionContext&, const QkClipArgs& a) {
  const auto gamma = [&](int64_t h) {
    const float s = a.maxima[h];
    const bool clips = (a.skip == nullptr || *a.skip == 0) && std::isfinite(s) && s > a.tau;
    return clips ? a.tau / s : 1.0f;
  };
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t g = 0; g < a.kv_heads; ++g) {
    float least = 1;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) least = std::min(least, gamma(h));
    a.key[g] = std::sqrt(least);
    for (int64_t h = g * group; h < (g + 1) * group; ++h) a.query[h] = gamma(h) / a.key[g];
  }
}

void scale_heads(ExecutionContext&, const HeadScaleArgs& a) {
  for (const HeadScaleSegment& s : a.segments) {
    if (s.count <= 0 || *s.factor == 1) continue;
    const WeightsAt x{a.form, s.x, s.low};
    for (int64_t i = 0; i < s.count; ++i) x.put(i, x.get(i) * *s.factor, s.noise, NoiseUse::weight);
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const QkClipKernels* QkClipKernels::reference() {
  static constexpr QkClipKernels table{
      .qk_clip_factors = reference::qk_clip_factors,
      .scale_heads = reference::scale_heads,
  };
  return &table;
}

const QkClipKernels* QkClipKernels::cpu() { return reference(); }

}  // namespace sherd
