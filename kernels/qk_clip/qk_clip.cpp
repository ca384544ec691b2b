#include <sherd/kernels/qk_clip/qk_clip.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/detail/check_forms.h>

namespace sherd::ops {

using namespace door;

void qk_clip_factors(Stream& s, const Tensor& query, const Tensor& key, const Tensor& maxima, double tau,
                     const Tensor& skip) {
  Check check("qk_clip_factors");
  check.dtype("query", query, DType::f32)
      .dtype("key", key, DType::f32)
      .dtype("maxima", maxima, DType::f32)
      .done();
  check.count("maxima", maxima, query.numel());
  check.that(key.numel() > 0 && query.numel() % key.numel() == 0,
             fmt::format("{} query heads are not a multiple of {} key heads", query.numel(), key.numel()));
  check.that(tau > 0, fmt::format("tau {} must be positive", tau));
  check_skip(check, skip);
  check.done();
  queue(s, {"qk_clip_factors", WorkKind::optimizer}, kernels<QkClipKernels>(s).qk_clip_factors,
        QkClipArgs{maxima.data<float>(), query.numel(), key.numel(), static_cast<float>(tau),
                   query.data<float>(), key.data<float>(), pointer<int64_t>(skip)});
}

void scale_heads(Stream& s, std::span<const HeadScaleSegment> segments, Master form) {
  Check check("scale_heads");
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].count <= 0) continue;
    check.that(segments[i].x && segments[i].factor, fmt::format("segment {}: x or factor is null", i));
    check_forms(check, i, {form, DType::f32}, segments[i].low, segments[i].noise);
  }
  check.done();
  queue(s, {"scale_heads", WorkKind::optimizer}, kernels<QkClipKernels>(s).scale_heads,
        HeadScaleArgs{{segments.begin(), segments.end()}, form});
}

}  // namespace sherd::ops
