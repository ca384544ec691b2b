#include <sherd/kernels/dion/dion.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {

Work work_of(const Device&, const DionKeepArgs& a) {
  int64_t count = 0;
  for (const DionSegment& s : a.segments) count += s.count;
  return {.bytes = count * (2 * static_cast<int64_t>(sizeof(float)) + size_of(a.results.dtype))};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

DionRowsArgs checked_rows(const char* op, const Tensor& all, const Tensor& chosen, const Tensor& slots) {
  Check check(op);
  check.dtype("all", all, DType::f32).dtype("chosen", chosen, DType::f32).dtype("slots", slots, DType::i32);
  check.dims("all", all, 3).dims("chosen", chosen, 3).done();
  check.shape("slots", slots, {all.size(0), all.size(1)});
  check.shape("chosen", chosen, {all.size(0), chosen.size(1), all.size(2)}).done();
  require_distinct(op, all, chosen);
  return {.batch = all.size(0),
          .rows = all.size(1),
          .kept = chosen.size(1),
          .cols = all.size(2),
          .slots = slots.data<int32_t>(),
          .all = all.data<float>(),
          .chosen = chosen.data<float>()};
}

}  // namespace

void dion_choose(Stream& s, const Tensor& slots, const Tensor& norms, const Tensor& in, int64_t kept) {
  Check check("dion_choose");
  check.dtype("slots", slots, DType::i32).dtype("norms", norms, DType::f64).dtype("in", in, DType::f32);
  check.dims("in", in, 3).done();
  const int64_t batch = in.size(0), rows = in.size(1), cols = in.size(2);
  check.shape("slots", slots, {batch, rows}).shape("norms", norms, {batch, rows}).done();
  require(rows == 0 || (kept >= 1 && kept <= rows),
          fmt::format("dion_choose: {} rows cannot be chosen of {}", kept, rows));
  queue(s, {"dion_norms", WorkKind::optimizer}, kernels<DionKernels>(s).norms,
        DionNormsArgs{batch * rows, cols, in.data<float>(), norms.data<double>()});
  queue(s, {"dion_choose", WorkKind::optimizer}, kernels<DionKernels>(s).choose,
        DionChooseArgs{batch, rows, kept, norms.data<double>(), slots.data<int32_t>()});
}

void dion_take(Stream& s, const Tensor& chosen, const Tensor& all, const Tensor& slots) {
  queue(s, {"dion_take", WorkKind::optimizer}, kernels<DionKernels>(s).take,
        checked_rows("dion_take", all, chosen, slots));
}

void dion_put(Stream& s, const Tensor& all, const Tensor& chosen, const Tensor& slots) {
  queue(s, {"dion_put", WorkKind::optimizer}, kernels<DionKernels>(s).put,
        checked_rows("dion_put", all, chosen, slots));
}

void dion_keep(Stream& s, std::span<const DionSegment> segments, const Tensor& results, float factor,
               const Tensor& skip) {
  Check check("dion_keep");
  check.dtype("results", results, kPayload).done();
  check_skip(check, skip);
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    const DionSegment& d = segments[i];
    check.that(d.count <= 0 || d.buffer, fmt::format("segment {}: buffer is null", i));
    check.that(d.at >= 0 && d.at + d.count <= results.numel(),
               fmt::format("segment {}: {} elements at {} lie outside results of {} elements", i, d.count,
                           d.at, results.numel()));
  }
  check.done();
  queue(s, {"dion_keep", WorkKind::optimizer}, kernels<DionKernels>(s).keep,
        DionKeepArgs{{segments.begin(), segments.end()}, ref(results), factor, pointer<int64_t>(skip)});
}

}  // namespace sherd::ops
