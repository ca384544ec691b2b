#include <sherd/kernels/quantize/quantize.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {

Work work_of(const Device&, const BlockArgs& a) {
  int64_t bytes = 0;
  for (const BlockSegment& s : a.segments)
    if (s.count > 0) bytes += 5 * s.count + 4 * (s.count / s.block);
  return {.bytes = bytes};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

BlockArgs checked(const char* op, std::span<const BlockSegment> segments, const Tensor& skip) {
  Check check(op);
  check_skip(check, skip);
  check_counts(check, segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    const BlockSegment& s = segments[i];
    if (s.count <= 0) continue;
    check.that(s.codes && s.scales && s.values,
               fmt::format("segment {}: codes, scales or values are null", i));
    const bool known = s.block == 64 || s.block == 128 || s.block == kLargestStateBlock;
    check.that(known, fmt::format("segment {}: blocks of {}, must be of 64, 128 or 256", i, s.block));
    if (!known) continue;
    check.that(s.count % s.block == 0,
               fmt::format("segment {}: {} elements, not whole blocks of {}", i, s.count, s.block));
    check.that(s.noise.index(0) % s.block == 0 && s.noise.width % s.block == 0 &&
                   (s.noise.width == 0 || s.noise.first % s.block == 0),
               fmt::format("segment {}: its noise does not begin with a block of {}", i, s.block));
  }
  check.done();
  return {{segments.begin(), segments.end()}, pointer<int64_t>(skip)};
}

}  // namespace

void quantize(Stream& s, std::span<const BlockSegment> segments, const Tensor& skip) {
  queue(s, {"quantize", WorkKind::optimizer}, kernels<QuantizeKernels>(s).quantize,
        checked("quantize", segments, skip));
}

void dequantize(Stream& s, std::span<const BlockSegment> segments) {
  queue(s, {"dequantize", WorkKind::optimizer}, kernels<QuantizeKernels>(s).dequantize,
        checked("dequantize", segments, {}));
}

}  // namespace sherd::ops
