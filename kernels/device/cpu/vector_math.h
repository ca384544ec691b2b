// Branch-free fp32 functions that compilers turn into vector code. Private to CPU kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace sherd::cpu {

/// a*b + c, fused where the processor can.
inline float mul_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x to within 3e-7 relative for x up to 88; e^-87 below -87; NaN stays NaN.
inline float exp_bounded(float x) {
  // x = n ln2 + r with |r| <= ln2/2; adding 1.5*2^23 rounds to an integer, left in the low bits of the sum.
  const float c = x < -87.0f ? -87.0f : x;
  const float shifted = mul_add(c, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = mul_add(n, -0.693359375f, c);
  r = mul_add(n, 2.12194440e-4f, r);
  // Taylor polynomial of degree 6, truncation error below 2e-8 on the interval.
  float p = 1.0f / 720;
  p = mul_add(p, r, 1.0f / 120);
  p = mul_add(p, r, 1.0f / 24);
  p = mul_add(p, r, 1.0f / 6);
  p = mul_add(p, r, 0.5f);
  p = mul_add(p, r, 1.0f);
  p = mul_add(p, r, 1.0f);
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

/// e^x to within 3e-7 relative; 0 below -87, infinity above 88; NaN stays NaN.
inline float exp_fast(float x) {
  const float result = exp_bounded(x > 88.0f ? 88.0f : x);
  const float low = x < -87.0f ? 0.0f : result;
  return x > 88.0f ? std::numeric_limits<float>::infinity() : low;
}

/// 2^x to within 4e-6 relative, for values that are rounded to 16 bits; 0 below -126.5, infinity above 127.5; NaN stays NaN.
inline float exp2_rough(float x) {
  // Same as exp_bounded(), but the constant also adds the exponent's bias: -127 makes a zero and 128 an
  // infinity.
  const float low = x < -127.0f ? -127.0f : x, c = low > 128.0f ? 128.0f : low;
  const float shifted = c + 12583039.0f;
  const float r = c - (shifted - 12583039.0f);
  // Polynomial with value 1 at 0 and the least relative error on |r| <= 1/2, 3e-6.
  float p = 0.009582841f;
  p = mul_add(p, r, 0.055906422f);
  p = mul_add(p, r, 0.24024099f);
  p = mul_add(p, r, 0.6931242f);
  p = mul_add(p, r, 1.0f);
  return p * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
}

/// e^x to within 1e-5 relative, likewise; 0 below -87.7, infinity above 88.4.
inline float exp_rough(float x) { return exp2_rough(x * 1.44269504f); }

/// 1/(1 + e^-x)
inline float sigmoid_fast(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

/// ln x to within 2e-7 relative, or 2^-25 absolute near 1; -infinity at 0, NaN below; NaN stays NaN.
inline float log_fast(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();  // subnormal: scaled by 2^23
  const float scaled = tiny ? x * 8388608.0f : x;
  // x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2).
  const int32_t u = std::bit_cast<int32_t>(scaled), n = (u - 0x3f3504f3) >> 23;
  const float f = std::bit_cast<float>(u - (n << 23)) - 1.0f, e = float(n) - (tiny ? 23.0f : 0.0f);
  // ln(1 + f) = f - f^2/2 + f^3 p(f); p interpolates at Chebyshev nodes, error below 1e-8 of the logarithm.
  float p = -0.08101559f;
  p = mul_add(p, f, 0.12712307f);
  p = mul_add(p, f, -0.12972239f);
  p = mul_add(p, f, 0.14202175f);
  p = mul_add(p, f, -0.16642247f);
  p = mul_add(p, f, 0.20001468f);
  p = mul_add(p, f, -0.25000298f);
  p = mul_add(p, f, 0.33333328f);
  float y = mul_add(p * f, f * f, e * -2.12194440e-4f);
  y = mul_add(-0.5f * f, f, y) + f;
  y = mul_add(e, 0.693359375f, y);
  y = x == 0.0f ? -std::numeric_limits<float>::infinity() : y;
  y = x > std::numeric_limits<float>::max() ? x : y;
  return x < 0.0f || x != x ? std::numeric_limits<float>::quiet_NaN() : y;
}

/// tanh x to within 4e-7 relative and at most 1; NaN stays NaN.
inline float tanh_fast(float x) {
  // x p(x^2) / q(x^2), fitted for the least relative error on |x| <= 8.4, 1.2e-8; behind 8.8 tanh rounds to 1.
  const float low = x < -8.8f ? -8.8f : x, c = low > 8.8f ? 8.8f : low, z = c * c;
  float p = 1.4522349491e-8f;
  p = mul_add(p, z, 2.14287915933e-5f);
  p = mul_add(p, z, 0.00354471769666f);
  p = mul_add(p, z, 0.134222353283f);
  p = mul_add(p, z, 1.0f);
  float q = 8.24706315445e-7f;
  q = mul_add(q, z, 0.000336640914214f);
  q = mul_add(q, z, 0.0260633712343f);
  q = mul_add(q, z, 0.467555625754f);
  q = mul_add(q, z, 1.0f);
  const float y = c * p / q, least = y < -1.0f ? -1.0f : y;
  return least > 1.0f ? 1.0f : least;
}

/// tanh x to within 2e-5 relative for |x| <= 4.2, behind which results that are rounded to bf16 are 1; NaN stays NaN.
inline float tanh_rough(float x) {
  const float low = x < -4.2f ? -4.2f : x, c = low > 4.2f ? 4.2f : low, z = c * c;
  const float p = mul_add(mul_add(7.4972474e-4f, z, 0.1047718f), z, 0.9999816f);
  const float q = mul_add(mul_add(0.0135675445f, z, 0.4379737f), z, 1.0f);
  return c * p / q;
}

/// Functions for results of type T: those that are rounded to 16 bits need less. A loss in f32 of
/// 16-bit logits is accurate to 1e-5.
struct FloatMath {
  using Number = float;
  static float exp(float x) { return exp_fast(x); }
  static float log(float x) { return log_fast(x); }
  static float sqrt(float x) { return std::sqrt(x); }
  static float tanh(float x) { return tanh_fast(x); }
  static float sigmoid(float x) { return sigmoid_fast(x); }
  static float pow(float x, float y) { return std::pow(x, y); }
};
struct RoughMath : FloatMath {
  static float exp(float x) { return exp_rough(x); }
  static float tanh(float x) { return tanh_rough(x); }
  static float sigmoid(float x) { return 1.0f / (1.0f + exp_rough(-x)); }
};
template <class T>
using MathFor = std::conditional_t<std::is_same_v<T, float>, FloatMath, RoughMath>;

}  // namespace sherd::cpu
