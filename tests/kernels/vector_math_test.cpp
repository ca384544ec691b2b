#include <gtest/gtest.h>
#include <sherd/kernels/device/cpu/vector_math.h>
#include <sherd/kernels/device/dtype.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace sherd::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(VectorMath, ExpIsAccurate) {
  for (float x = -87; x <= 88; x += 0.00137f)
    ASSERT_NEAR(double(exp_fast(x)) / std::exp(double(x)), 1, 3e-7) << x;
  EXPECT_EQ(exp_fast(0), 1);
}

TEST(VectorMath, ExpAtItsEdges) {
  EXPECT_EQ(exp_fast(-87.1f), 0);
  EXPECT_EQ(exp_fast(-1e30f), 0);
  EXPECT_EQ(exp_fast(-kInf), 0);
  EXPECT_EQ(exp_fast(88.1f), kInf);
  EXPECT_EQ(exp_fast(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_fast(std::nanf(""))));
}

TEST(VectorMath, RoughPowersOfTwo) {
  for (float x = -126; x <= 127; x += 0.00137f)
    ASSERT_NEAR(double(exp2_rough(x)) / std::exp2(double(x)), 1, 4e-6) << x;
  EXPECT_EQ(exp2_rough(0), 1);
  for (float x = -87; x <= 88; x += 0.00137f)
    ASSERT_NEAR(double(exp_rough(x)) / std::exp(double(x)), 1, 1e-5) << x;
  EXPECT_EQ(exp2_rough(-126.6f), 0);
  EXPECT_EQ(exp2_rough(-kInf), 0);
  EXPECT_EQ(exp2_rough(127.6f), kInf);
  EXPECT_EQ(exp2_rough(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp2_rough(std::nanf(""))));
}

TEST(VectorMath, RoughTanh) {
  for (float x = -4.2f; x <= 4.2f; x += 0.00137f)
    ASSERT_NEAR(double(tanh_rough(x)), std::tanh(double(x)), 2.1e-5 * std::abs(std::tanh(double(x)))) << x;
  for (const float x : {4.2f, 4.3f, kInf}) {
    EXPECT_EQ(float(bf16(tanh_rough(x))), 1) << x;
    EXPECT_EQ(float(bf16(tanh_rough(-x))), -1) << x;
  }
  EXPECT_TRUE(std::isnan(tanh_rough(std::nanf(""))));
}

TEST(VectorMath, Sigmoid) {
  for (float x = -80; x < 80; x += 0.0513f)
    ASSERT_NEAR(double(sigmoid_fast(x)) * (1 + std::exp(-double(x))), 1, 4e-7) << x;
  EXPECT_EQ(sigmoid_fast(-kInf), 0);
  EXPECT_EQ(sigmoid_fast(kInf), 1);
}

TEST(VectorMath, LogIsAccurate) {
  const auto check = [](float x) {
    const double want = std::log(double(x));
    ASSERT_NEAR(double(log_fast(x)), want, 2e-7 * std::abs(want) + 0x1p-25) << x;
  };
  for (uint32_t subnormal = 1; subnormal < 1u << 23; subnormal += 10007)
    check(std::bit_cast<float>(subnormal));
  for (float x = 1.2e-38f; x < 1e38f; x *= 1.0137f) check(x);
  EXPECT_EQ(log_fast(1), 0);
}

TEST(VectorMath, LogAtItsEdges) {
  EXPECT_EQ(log_fast(0), -kInf);
  EXPECT_EQ(log_fast(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_fast(-1)));
  EXPECT_TRUE(std::isnan(log_fast(-kInf)));
  EXPECT_TRUE(std::isnan(log_fast(std::nanf(""))));
}

TEST(VectorMath, Tanh) {
  for (float x = -20; x < 20; x += 0.00137f)
    ASSERT_NEAR(double(tanh_fast(x)), std::tanh(double(x)), 4e-7 * std::abs(std::tanh(double(x)))) << x;
  for (float x = 1e-30f; x < 1; x *= 1.5f) ASSERT_NEAR(tanh_fast(x) / std::tanh(double(x)), 1, 4e-7) << x;
  for (float x = 7; x < 20; x += 0.000137f) ASSERT_LE(tanh_fast(x), 1) << x;
  EXPECT_EQ(tanh_fast(1e-40f), 1e-40f);
  EXPECT_EQ(tanh_fast(9), 1);
  EXPECT_EQ(tanh_fast(kInf), 1);
  EXPECT_EQ(tanh_fast(-kInf), -1);
  EXPECT_TRUE(std::isnan(tanh_fast(std::nanf(""))));
}

}  // namespace
}  // namespace sherd::cpu
