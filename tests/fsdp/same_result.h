// Comparison of two trainings of the toy model.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/toy_model.h"

namespace sherd::test {

inline void expect_same_bits(const ToyResult& got, const ToyResult& want, const std::string& what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  EXPECT_EQ(got.norms, want.norms) << what;
  EXPECT_EQ(got.zeros, want.zeros) << what;
  EXPECT_EQ(got.weights, want.weights) << what;
}

}  // namespace sherd::test
