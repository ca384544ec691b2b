#include <sherd/kernels/quantize/quantize.h>

namespace sherd::reference {
namespace {

template <StateCode kCode>
float largest_of(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float v = std::abs(values[i]);
    if (!(v <= largest)) largest = v;
    if (v != v) break;
  }
  return kCode == StateCode::square_root ? std::sqrt(largest) : largest;
}

void quantize(ExecutionContext&, const BlockArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (const BlockSegment& s : a.segments)
    with_code(s.code, [&](auto code) {
      for (int64_t first = 0; first < s.count; first += s.block) {
        const BlockScale scale = block_scale(code, largest_of<code()>(s.values + first, s.block));
        s.scales[first / s.block] = scale.scale;
        for (int64_t i = first; i < first + s.block; ++i)
          s.codes[i] = quantized<code()>(s.values[i], scale.inverse,
                                         s.noise.count ? noise_at(s.noise, i, use_of(code)) : kToNearest);
      }
    });
}

void dequantize(ExecutionContext&, const BlockArgs& a) {
  for (const BlockSegment& s : a.segments)
    with_code(s.code, [&](auto code) {
      for (int64_t i = 0; i < s.count; ++i)
        s.values[i] = dequantized<code()>(s.codes[i], s.scales[i / s.block]);
    });
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const QuantizeKernels* QuantizeKernels::reference() {
  static constexpr QuantizeKernels table{.quantize = reference::quantize,
                                         .dequantize = reference::dequantize};
  return &table;
}

}  // namespace sherd
