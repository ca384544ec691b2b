#include <gtest/gtest.h>
#include <sherd/kernels/device/dtype.h>

#include <cmath>
#include <limits>

namespace sherd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
T from_bits(uint32_t bits) {
  return std::bit_cast<T>(static_cast<uint16_t>(bits));
}

template <class T>
void round_trip_all_bits() {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float f = float(from_bits<T>(b));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(float(T(f)))) << b;
    } else {
      EXPECT_EQ(T(f).bits, b) << f;
    }
  }
}

/// Between neighbours the nearer wins; at the midpoint the one with an even last bit.
template <class T>
void rounds_to_nearest_even() {
  for (uint32_t b = 0; b < 32768; ++b) {
    const float low = float(from_bits<T>(b)), high = float(from_bits<T>(b + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((double(low) + double(high)) / 2);
    const uint32_t even = b % 2 == 0 ? b : b + 1;
    for (float sign : {1.0f, -1.0f}) {
      const uint32_t s = sign < 0 ? 0x8000u : 0u;
      EXPECT_EQ(T(sign * middle).bits, even | s) << middle;
      EXPECT_EQ(T(sign * std::nextafter(middle, 0.0f)).bits, b | s) << middle;
      EXPECT_EQ(T(sign * std::nextafter(middle, kInf)).bits, (b + 1) | s) << middle;
    }
  }
}

TEST(DType, Bf16RoundTripsEveryPattern) { round_trip_all_bits<bf16>(); }
TEST(DType, F16RoundTripsEveryPattern) { round_trip_all_bits<f16>(); }
TEST(DType, Bf16RoundsToNearestEven) { rounds_to_nearest_even<bf16>(); }
TEST(DType, F16RoundsToNearestEven) { rounds_to_nearest_even<f16>(); }

TEST(DType, F16KnownValues) {
  EXPECT_EQ(f16(1.0f).bits, 0x3c00);
  EXPECT_EQ(f16(-2.0f).bits, 0xc000);
  EXPECT_EQ(f16(65504.0f).bits, 0x7bff);  // largest
  EXPECT_EQ(f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00);  // the tie goes to infinity
  EXPECT_EQ(f16(kInf).bits, 0x7c00);
  EXPECT_EQ(f16(0x1p-24f).bits, 0x0001);  // smallest
  EXPECT_EQ(f16(0x1p-25f).bits, 0x0000);  // the tie goes to zero
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(f16(1.0f / 3).bits, 0x3555);
}

TEST(DType, Bf16KnownValues) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(-2.0f).bits, 0xc000);
  EXPECT_EQ(bf16(1.0f / 3).bits, 0x3eab);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // rounds to infinity
  EXPECT_EQ(bf16(-kInf).bits, 0xff80);
  EXPECT_TRUE(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));  // payload in the lost bits
  EXPECT_TRUE(std::isnan(float(f16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace sherd
