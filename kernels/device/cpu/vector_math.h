// Branch-free fp32 functions that compilers turn into vector code. Private to CPU kernels.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

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

/// 1/(1 + e^-x)
inline float sigmoid_fast(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

}  // namespace sherd::cpu
