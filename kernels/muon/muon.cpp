#include <sherd/kernels/muon/muon.h>

#include <fmt/format.h>

#include <cmath>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/detail/check_forms.h>

namespace sherd {
namespace {

template <class Segment>
int64_t elements_of(const std::vector<Segment>& segments) {
  int64_t count = 0;
  for (const Segment& s : segments) count += s.count;
  return count;
}

}  // namespace

Work work_of(const Device&, const MuonMomentumArgs& a) {
  return {.bytes = elements_of(a.segments) *
                   (2 * size_of(a.forms.state) + size_of(a.forms.gradient) + size_of(a.packed.dtype))};
}

Work work_of(const Device&, const MuonUpdateArgs& a) {
  int64_t bytes = elements_of(a.segments) * (2 * bytes_of(a.forms.master) + size_of(a.packed.dtype));
  for (const UpdateSegment& s : a.segments)
    if (s.copy != nullptr) bytes += s.count * size_of(a.copy_dtype);
  return {.bytes = bytes};
}

Work work_of(const Device&, const CopySegmentsArgs& a) {
  return {.bytes = elements_of(a.segments) * (size_of(a.to.dtype) + size_of(a.from.dtype))};
}

Work work_of(const Device&, const CheckFiniteArgs& a) {
  return {.bytes = elements_of(a.segments) * size_of(a.dtype)};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

/// Adds `count` elements from `at` of a buffer of `size` elements to the problems unless they are inside.
void check_range(Check& check, const char* buffer, size_t segment, int64_t at, int64_t count, int64_t size) {
  if (count >= 0 && at >= 0 && count <= size && at <= size - count) return;
  check.that(false, fmt::format("segment {}: {} elements at {} lie outside {} of {} elements", segment, count,
                                at, buffer, size));
}

}  // namespace

void muon_momentum(Stream& s, const Tensor& packed, std::span<const MomentumSegment> segments, float mu,
                   bool nesterov, float l2, const Tensor& skip, const Tensor& factor,
                   const RestForms& forms) {
  Check check("muon_momentum");
  check.dtype("packed", packed, kPayload).done();
  check_skip(check, skip);
  if (factor.defined()) check.dtype("factor", factor, DType::f32).count("factor", factor, 1);
  check_dtypes(check, forms);
  // The pass reads weights, and rounds nothing but states.
  const RestForms read{l2 != 0 && forms.master == Master::split ? Master::split : Master::f32, forms.state};
  for (size_t i = 0; i < segments.size(); ++i) {
    const MomentumSegment& m = segments[i];
    check_range(check, "packed", i, m.at == -1 ? 0 : m.at, m.at == -1 ? 0 : m.count, packed.numel());
    check.that(m.count >= 0, fmt::format("segment {}: count {} is negative", i, m.count));
    if (m.count > 0 && (!m.buffer || !m.gradient || (l2 != 0 && !m.weight)))
      check.that(false, fmt::format("segment {}: buffer, gradient or (with l2) weight is null", i));
    if (m.count > 0) check_forms(check, i, read, m.low, m.noise);
  }
  check.done();
  require(mu >= 0 && mu <= 1, fmt::format("muon_momentum: mu {} must lie in [0, 1]", mu));
  require(std::isfinite(l2), fmt::format("muon_momentum: l2 {} must be finite", l2));
  queue(s, {"muon_momentum", WorkKind::optimizer}, kernels<MuonKernels>(s).muon_momentum,
        MuonMomentumArgs{{segments.begin(), segments.end()},
                         ref(packed),
                         mu,
                         nesterov,
                         l2,
                         pointer<int64_t>(skip),
                         pointer<float>(factor),
                         forms});
}

void muon_update(Stream& s, std::span<const UpdateSegment> segments, const Tensor& packed, const Tensor& skip,
                 DType copy_dtype, const RestForms& forms) {
  Check check("muon_update");
  check.dtype("packed", packed, kPayload).done();
  check.that(copy_dtype == DType::f32 || copy_dtype == DType::bf16 || copy_dtype == DType::f16,
             fmt::format("copies are {}, must be f32 or bf16 or f16", name_of(copy_dtype)));
  check_skip(check, skip);
  for (size_t i = 0; i < segments.size(); ++i) {
    check_range(check, "packed", i, segments[i].at, segments[i].count, packed.numel());
    if (segments[i].count > 0 && !segments[i].weight)
      check.that(false, fmt::format("segment {}: weight is null", i));
    if (segments[i].count > 0)
      check_forms(check, i, {forms.master, DType::f32}, segments[i].low, segments[i].noise);
    check.that(forms.master == Master::f32 || segments[i].copy == nullptr,
               fmt::format("segment {}: a copy beside weights in form {}", i, name_of(forms.master)));
  }
  check.done();
  queue(s, {"muon_update", WorkKind::optimizer}, kernels<MuonKernels>(s).muon_update,
        MuonUpdateArgs{
            {segments.begin(), segments.end()}, ref(packed), pointer<int64_t>(skip), copy_dtype, forms});
}

void copy_segments(Stream& s, const Tensor& to, const Tensor& from, std::span<const CopySegment> segments) {
  Check check("copy_segments");
  check.dtype("to", to, kPayload).dtype("from", from, kPayload).done();
  int64_t total = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    check_range(check, "to", i, segments[i].to, segments[i].count, to.numel());
    check_range(check, "from", i, segments[i].from, segments[i].count, from.numel());
    total += segments[i].count;
  }
  check.done();
  require_distinct("copy_segments", to, from);
  s.device().count_copy(total * size_of(from.dtype()));
  queue(s, {"copy_segments", WorkKind::optimizer}, kernels<MuonKernels>(s).copy_segments,
        CopySegmentsArgs{{segments.begin(), segments.end()}, ref(to), ref(from)});
}

void check_finite(Stream& s, std::span<const CheckedSegment> segments, MatrixStatus found, bool clears,
                  const Tensor& skip, DType dtype) {
  Check check("check_finite");
  check_skip(check, skip);
  check.that(dtype == DType::f32 || dtype == DType::bf16,
             fmt::format("values are {}, must be f32 or bf16", name_of(dtype)));
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i)
    check.that(segments[i].count <= 0 || (segments[i].values && segments[i].status),
               fmt::format("segment {}: values or status is null", i));
  check.done();
  queue(s, {"check_finite", WorkKind::optimizer}, kernels<MuonKernels>(s).check_finite,
        CheckFiniteArgs{{segments.begin(), segments.end()}, found, clears, pointer<int64_t>(skip), dtype});
}

}  // namespace sherd::ops
