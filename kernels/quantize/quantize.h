// Optimizer state in 8 bits with a scale for each block of elements (Dettmers et al. 2022, arXiv 2110.02861). ops.h says what
// holds for all operations.
//
// Blocks follow the parameter's shape alone (state_block()), so no rank, layout or strategy changes which elements share a
// scale. Values that are read back and rounded to nearest again have the same codes and scales.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Codes of state in 8 bits. A block's scale is its largest magnitude (root) divided by top_of(). A block with NaN or infinity
/// is read as NaN.
enum class StateCode : uint8_t {
  linear,    // i8 c: value c * scale
  floating,  // f8_e4m3 c: value c * scale
  square_root,  // f8_e4m3 c >= 0: value (c * scale)^2, of values >= 0; other values than 0 have other codes than 0
};
inline constexpr EnumTable<StateCode, 3> kStateCodeNames{"linear", "floating", "square_root"};
constexpr const char* name_of(StateCode c) { return kStateCodeNames.name(c); }
constexpr DType dtype_of(StateCode c) { return c == StateCode::linear ? DType::i8 : DType::f8_e4m3; }
constexpr float top_of(StateCode c) { return c == StateCode::linear ? 127.0f : 448.0f; }

/// Returns whether optimizers round it to nearest: a step changes momentum by more than the distance of two codes, and a second moment
/// by less. (Rounded to nearest, that would rise with large gradients and not fall with small ones.)
constexpr bool is_rounded_to_nearest(StateCode c) { return c != StateCode::square_root; }

/// Largest block, and elements below which a parameter has none (as in bitsandbytes and torchao).
inline constexpr int64_t kLargestStateBlock = 256, kFewestQuantized = 4096;

/// Returns the elements that share a scale in the state of a parameter of this global shape: consecutive ones of a row (the last
/// dimension), the largest of 256, 128 and 64 that divides it. 0: its state has no 8-bit form.
inline int64_t state_block(const Shape& shape) {
  if (shape.size() < 2 || numel_of(shape) < kFewestQuantized) return 0;
  for (int64_t block = kLargestStateBlock; block >= 64; block /= 2)
    if (shape.back() % block == 0) return block;
  return 0;
}

struct BlockScale {
  float scale = 0, inverse = 0;
};
/// Returns the scale of a block whose largest magnitude (root) is `largest`. Blocks below 2^-100 are 0: their inverse would
/// be infinite.
constexpr BlockScale block_scale(StateCode code, float largest) {
  if (largest < 0x1p-100f) return {};
  if (!(largest <= std::numeric_limits<float>::max())) return {std::bit_cast<float>(kQuietNan), 0};
  return {largest / top_of(code), top_of(code) / largest};
}

/// Noise with which quantized() rounds to nearest, ties away from zero.
inline constexpr uint16_t kToNearest = 0x8000;

/// Returns the magnitude code of y >= 0, in units of the scale, rounded as rounded() of rest.h rounds to bf16. A block's largest
/// value, which division may leave below the top, and NaN have the largest code.
constexpr uint32_t float8_code(float y, uint16_t noise) {
  const uint32_t u = std::bit_cast<uint32_t>(y) & 0x7fffffffu;  // of the root of -0, too
  const float small = y < 0x1p-6f ? y : 0.0f;
  const auto low = static_cast<int32_t>(small * 512 + static_cast<float>(noise) * 0x1p-16f),
             high = static_cast<int32_t>((u + (uint32_t{noise} << 4)) >> 20) - 960,
             code = y < 0x1p-6f ? low : high;
  return static_cast<uint32_t>(y <= 447.9f ? code : 126);
}
constexpr float float8_value(uint32_t code) {
  return code < 8 ? static_cast<float>(static_cast<int32_t>(code)) * 0x1p-9f
                  : std::bit_cast<float>((code + 960) << 20);
}

/// Returns the code of a value of a block. Products and sums are rounded one by one: build without contraction.
template <StateCode kCode>
uint8_t quantized(float v, float inverse, uint16_t noise) {
  if constexpr (kCode == StateCode::linear) {
    const float y = std::abs(v) * inverse, t = y + static_cast<float>(noise) * 0x1p-16f;
    const auto c = static_cast<int32_t>(y <= 126.99f ? t : 127.0f);
    return static_cast<uint8_t>(v < 0 ? -c : c);
  } else if constexpr (kCode == StateCode::floating) {
    return static_cast<uint8_t>(float8_code(std::abs(v) * inverse, noise) |
                                (v == v ? std::bit_cast<uint32_t>(v) >> 24 & 0x80u : 0));
  } else {
    const uint32_t c = float8_code(std::sqrt(v) * inverse, noise);
    return static_cast<uint8_t>(c | static_cast<uint32_t>((c == 0) & (v > 0)));
  }
}
template <StateCode kCode>
float dequantized(uint8_t code, float scale) {
  if constexpr (kCode == StateCode::linear) {
    return static_cast<float>(static_cast<int8_t>(code)) * scale;
  } else {
    const float r = float8_value(code & 0x7fu) * scale;
    if constexpr (kCode == StateCode::square_root) return r * r;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(r) | uint32_t{code & 0x80u} << 24);
  }
}

/// Whole blocks of a state.
struct BlockSegment {
  uint8_t* codes = nullptr;
  float* scales = nullptr;  // one for each block
  float* values = nullptr;
  int64_t count = 0;  // elements
  int64_t block = 0;
  StateCode code = StateCode::linear;
  /// Without a count quantize() rounds to nearest.
  Noise noise = {};
};

struct BlockArgs {
  std::vector<BlockSegment> segments;
  const int64_t* skip = nullptr;
};

Work work_of(const Device& device, const BlockArgs& a);

struct QuantizeKernels {
  static constexpr const char* kName = "quantize";
  static const QuantizeKernels* reference();
  static const QuantizeKernels* cpu();
  static const QuantizeKernels* cuda();

  void (*quantize)(ExecutionContext&, const BlockArgs&);
  void (*dequantize)(ExecutionContext&, const BlockArgs&);
};

namespace ops {

/// Codes and scales receive `values`, unless skip (i64 [1], may be undefined) is other than 0. The noise is NoiseUse::first_state
/// of linear and floating codes, second_state of square_root.
/// @throws ShapeMismatch naming every segment that lacks a pointer, or whose elements or noise do not begin and end with blocks.
void quantize(Stream& s, std::span<const BlockSegment> segments, const Tensor& skip = {});
/// `values` receive what codes and scales say.
void dequantize(Stream& s, std::span<const BlockSegment> segments);

}  // namespace ops

/// Use of the noise that quantize() draws.
constexpr NoiseUse use_of(StateCode c) {
  return c == StateCode::square_root ? NoiseUse::second_state : NoiseUse::first_state;
}

/// Calls f(std::integral_constant<StateCode, code>).
template <class F>
void with_code(StateCode code, F&& f) {
  if (code == StateCode::linear) return f(std::integral_constant<StateCode, StateCode::linear>{});
  if (code == StateCode::floating) return f(std::integral_constant<StateCode, StateCode::floating>{});
  f(std::integral_constant<StateCode, StateCode::square_root>{});
}

}  // namespace sherd
