// Compares outputs of CPU kernels with one thread and with two.
#pragma once

#include <string>
#include <vector>

#include "kernels/lab.h"

namespace sherd::test {

class Threads : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the OpenMP runtime is not instrumented, so its barriers look like races";
#endif
  }

  template <class F>
  void expect_same_bits(F experiment) {
    Lab one("cpu", 1), two("cpu", 2);
    const std::vector<Tensor> a = experiment(one), b = experiment(two);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      auto bytes = [&](Lab& lab, const Tensor& t) {
        std::vector<char> v(static_cast<size_t>(t.nbytes()));
        ops::copy_to_host(lab.s, v.data(), t);
        return v;
      };
      EXPECT_TRUE(bytes(one, a[i]) == bytes(two, b[i])) << "output " << i;
    }
  }
};

using Outputs = std::vector<Tensor>;
inline constexpr DType kTypes[] = {DType::f32, DType::bf16};

}  // namespace sherd::test
