#include <gtest/gtest.h>
#include <sherd/kernels/device/cpu/vector_math.h>

#include <cmath>

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

TEST(VectorMath, Sigmoid) {
  for (float x = -80; x < 80; x += 0.0513f)
    ASSERT_NEAR(double(sigmoid_fast(x)) * (1 + std::exp(-double(x))), 1, 4e-7) << x;
  EXPECT_EQ(sigmoid_fast(-kInf), 0);
  EXPECT_EQ(sigmoid_fast(kInf), 1);
}

}  // namespace
}  // namespace sherd::cpu
