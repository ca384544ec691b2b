// Functions' gradients against differences of their values.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include <sherd/kernels/random/random.h>
#include <sherd/nn/nn.h>

namespace sherd::test {

/// The objective is a sum with weights that differ, so that every element of the gradient differs.
inline nn::Var weighted(const nn::Var& y) {
  Tensor target = Tensor::empty(y.device(), y.shape(), DType::f32, "test");
  ops::random_normal(y.stream(), target, 0, 3, "target", 0, 1);
  return nn::mean_squared_error(y, target);
}

inline Tensor random(Device& device, Shape shape, uint64_t seed) {
  Tensor x = Tensor::empty(device, std::move(shape), DType::f32, "test");
  ops::random_normal(device.compute(), x, 0, seed, "x", 0, 1);
  return x;
}

/// Objectives near 1 in f32 and steps of 1/64: differences err by about 6e-8 * 64 = 4e-6 of a gradient near 0.1, and by
/// step^2 / 6 = 4e-5 times a third derivative.
constexpr double kStep = 1.0 / 64, kError = 2e-3;

inline void expect_gradient(const std::function<nn::Var(nn::Tape&, const std::vector<nn::Var>&)>& f,
                            std::vector<Tensor> inputs) {
  const nn::GradientError worst = nn::check_gradient(f, std::move(inputs), kStep);
  EXPECT_LT(worst.error, kError) << worst.describe();
}

}  // namespace sherd::test
