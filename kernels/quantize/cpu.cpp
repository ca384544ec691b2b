#include <sherd/kernels/quantize/quantize.h>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/segments.h>
#include <sherd/kernels/rest/cpu_forms.h>

namespace sherd::cpu {
namespace {

// The same fp32 operations as the reference, in the same order.

/// Calls f(segment, begin, end) for pieces of whole blocks.
template <class F>
void for_blocks(ExecutionContext& ctx, const BlockArgs& a, F f) {
  for_segments(ctx, a.segments, [&](const BlockSegment& s, int64_t b, int64_t e) {
    const auto up = [&](int64_t i) { return (i + s.block - 1) / s.block * s.block; };
    if (up(b) < up(e)) f(s, up(b), up(e));
  });
}

template <StateCode kCode>
float largest_of(const float* values, int64_t count) {
  // Magnitudes are ordered as their bits, NaN above all.
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  const float v = std::bit_cast<float>(largest);
  return kCode == StateCode::square_root ? std::sqrt(v) : v;
}

template <StateCode kCode, bool kDraws>
void quantize_piece(const BlockSegment& s, int64_t b, int64_t e) {
  float inverse = 0;
  with_noise<kDraws>(s.noise, b, e, [&](int64_t first, auto count, const Drawn<kDraws>& noise) {
    for (int64_t at = 0, n = 0; at < count; at += n) {
      // Pieces with noise end before a block does.
      const int64_t in_block = (first + at) % s.block;
      if (in_block == 0) {
        const BlockScale scale = block_scale(kCode, largest_of<kCode>(s.values + first + at, s.block));
        s.scales[(first + at) / s.block] = scale.scale;
        inverse = scale.inverse;
      }
      const float factor = inverse;
      const float* const from = s.values + first + at;
      uint8_t* const to = s.codes + first + at;
      const auto each = [&](auto size) {
#pragma omp simd
        for (int64_t i = 0; i < size; ++i)
          to[i] =
              quantized<kCode>(from[i], factor, kDraws ? noise.template at<use_of(kCode)>(i) : kToNearest);
        n = size;
      };
      if constexpr (kDraws) {
        each(count);
      } else {
        each(s.block);
      }
    }
  });
}

void quantize(ExecutionContext& ctx, const BlockArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for_blocks(ctx, a, [](const BlockSegment& s, int64_t b, int64_t e) {
    with_code(s.code, [&](auto code) {
      if (s.noise.count != nullptr) return quantize_piece<decltype(code)::value, true>(s, b, e);
      quantize_piece<decltype(code)::value, false>(s, b, e);
    });
  });
}

void dequantize(ExecutionContext& ctx, const BlockArgs& a) {
  for_blocks(ctx, a, [](const BlockSegment& s, int64_t b, int64_t e) {
    with_code(s.code, [&](auto code) {
      for (int64_t first = b; first < e; first += s.block) {
        const float scale = s.scales[first / s.block];
        const uint8_t* const from = s.codes + first;
        float* const to = s.values + first;
#pragma omp simd
        for (int64_t i = 0; i < s.block; ++i) to[i] = dequantized<decltype(code)::value>(from[i], scale);
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const QuantizeKernels* QuantizeKernels::cpu() {
  static constexpr QuantizeKernels table{.quantize = cpu::quantize, .dequantize = cpu::dequantize};
  return &table;
}

}  // namespace sherd
