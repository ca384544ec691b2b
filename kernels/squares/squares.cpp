#include <sherd/kernels/squares/squares.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/squares/exact_sum.h>

namespace sherd {

Work work_of(const Device&, const std::vector<SquaresSegment>& segments) {
  int64_t bytes = 0;
  for (const SquaresSegment& s : segments) bytes += s.count * size_of(s.dtype);
  return {.bytes = bytes};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

void check_pieces(Check& check, std::span<const SquaresSegment> segments) {
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    check.that(segments[i].count <= 0 || segments[i].x, fmt::format("segment {}: x is null", i));
    check.that(segments[i].dtype == DType::f32 || segments[i].dtype == DType::bf16,
               fmt::format("segment {}: x is {}, must be f32 or bf16", i, name_of(segments[i].dtype)));
  }
  check.done();
}

}  // namespace

void accumulate_squares(Stream& s, std::span<const SquaresSegment> segments) {
  Check check("accumulate_squares");
  check_pieces(check, segments);
  queue(s, {"accumulate_squares", WorkKind::squares}, kernels<SquaresKernels>(s).accumulate_squares,
        {segments.begin(), segments.end()});
}

void accumulate_squares(Stream& s, const Tensor& accumulator, const Tensor& x) {
  Check check("accumulate_squares");
  check.dtype("accumulator", accumulator, DType::i64).dtype("x", x, DType::f32);
  check.count("accumulator", accumulator, ExactSum::kWords).done();
  const SquaresSegment segment{x.data<float>(), x.numel(), accumulator.data<int64_t>()};
  accumulate_squares(s, {&segment, 1});
}

void accumulate_magnitudes(Stream& s, std::span<const SquaresSegment> segments) {
  Check check("accumulate_magnitudes");
  check_pieces(check, segments);
  queue(s, {"accumulate_magnitudes", WorkKind::squares}, kernels<SquaresKernels>(s).accumulate_magnitudes,
        {segments.begin(), segments.end()});
}

void largest_magnitude(Stream& s, const Tensor& largest, std::span<const SquaresSegment> segments) {
  Check check("largest_magnitude");
  check.dtype("largest", largest, DType::f32).count("largest", largest, 1);
  check_pieces(check, segments);
  queue(s, {"largest_magnitude", WorkKind::squares}, kernels<SquaresKernels>(s).largest_magnitude,
        largest.data<float>(), {segments.begin(), segments.end()});
}

void add_words(Stream& s, const Tensor& dst, const Tensor& src) {
  Check check("add_words");
  check.dtype("dst", dst, DType::i64).dtype("src", src, DType::i64).count("src", src, dst.numel()).done();
  queue(s, {"add_words", WorkKind::optimizer}, kernels<SquaresKernels>(s).add_words, dst.data<int64_t>(),
        src.data<int64_t>(), dst.numel());
}

void clip_factor(Stream& s, const Tensor& factor, const Tensor& total, std::span<const Tensor> accumulators,
                 double max_norm, const Tensor& skip, NormKind kind, const Tensor& largest) {
  Check check("clip_factor");
  check.dtype("factor", factor, DType::f32).count("factor", factor, 1);
  check.dtype("total", total, DType::i64).count("total", total, ExactSum::kWords);
  check_skip(check, skip);
  if (kind == NormKind::infinity) check.dtype("largest", largest, DType::f32).count("largest", largest, 1);
  ClipFactorArgs a{.max_norm = max_norm, .kind = kind};
  for (const Tensor& t : accumulators) {
    check.dtype("accumulator", t, DType::i64).count("accumulator", t, ExactSum::kWords).done();
    a.accumulators.push_back(t.data<int64_t>());
  }
  check.done();
  a.factor = factor.data<float>();
  a.total = total.data<int64_t>();
  a.skip = pointer<int64_t>(skip);
  a.largest = pointer<float>(largest);
  queue(s, {"clip_factor", WorkKind::optimizer}, kernels<SquaresKernels>(s).clip_factor, a);
}

}  // namespace sherd::ops
