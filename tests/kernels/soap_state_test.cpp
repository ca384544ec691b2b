// The step of KL-SOAP with its state in device memory, beside the reference: for every device's kernels.
#include <sherd/kernels/soap/soap.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <sherd/kernels/soap/detail/state_tensors.h>

#include "lab.h"

namespace sherd::test {
namespace {

/// State of `count` matrices [m, n], one behind the other.
struct SoapMemory {
  SoapMemory(Lab& lab, int64_t count, int64_t m, int64_t n, int64_t max_dim)
      : each(soap_state_elements(m, n, m <= max_dim, n <= max_dim)), memory(lab.full({count * each}, 0)) {
    for (int64_t i = 0; i < count; ++i)
      states.push_back(soap_layout(memory.data<float>() + i * each, m, n, m <= max_dim, n <= max_dim));
  }
  int64_t each;
  Tensor memory;
  std::vector<SoapState> states;
};

struct SoapTrace {
  std::vector<Floats> outs;
  Floats state;
  std::vector<int32_t> statuses;
};

/// Four steps; with `bad`, the last one has an Inf in the last matrix, and the first matrix skips it.
SoapTrace soap_trace(Lab& lab, int64_t count, int64_t m, int64_t n, int64_t max_dim, bool bad = false,
                     int64_t first = 0) {
  SoapMemory memory(lab, count, m, n, max_dim);
  const Tensor skip = lab.full({1}, 1, DType::i64), status = lab.empty({count}, DType::i32);
  SoapTrace trace;
  for (int t = 0; t < 4; ++t) {
    Floats g;
    for (int64_t i = 0; i < count; ++i) {
      const Floats one = normal(m * n, static_cast<unsigned>(100 * (first + i) + t));
      g.insert(g.end(), one.begin(), one.end());
    }
    std::vector<SoapMatrix> matrices;
    for (const SoapState& s : memory.states) matrices.push_back({s, nullptr});
    if (bad && t == 3) {
      g.back() = kInf;
      matrices[0].skip = skip.data<int64_t>();
    }
    const Tensor in = lab.tensor({count, m, n}, g), out = lab.full({count, m, n}, 7);
    ops::soap_step(lab.s, out, in, status, matrices, {.eps = 1e-3});
    trace.outs.push_back(lab.floats(out));
  }
  trace.state = lab.floats(memory.memory);
  trace.statuses.assign(static_cast<size_t>(count), -1);
  ops::copy_to_host(lab.s, trace.statuses.data(), status);
  return trace;
}

// A side without a factor keeps the rest well conditioned; a rectangle with both has an early factor whose null space
// rounding chooses. Both tables compute in double and round to f32 once a step: eigenvalues of 1e-3 enlarge 2^-24.
TEST(SoapState, IsTheReferences) {
  for (const auto& [m, n, max_dim] : {std::tuple<int64_t, int64_t, int64_t>{8, 8, 64},
                                      {40, 40, 64},
                                      {5, 12, 8},
                                      {12, 5, 8},
                                      {3, 4, 0},
                                      {1, 1, 8}}) {
    Lab fast, slow("reference");
    const SoapTrace got = soap_trace(fast, 2, m, n, max_dim), want = soap_trace(slow, 2, m, n, max_dim);
    for (size_t t = 0; t < want.outs.size(); ++t)
      for (size_t i = 0; i < want.outs[t].size(); ++i)
        ASSERT_NEAR(got.outs[t][i], want.outs[t][i], 0x1p-24 / 1e-3 * 8) << m << " x " << n << " step " << t;
    EXPECT_EQ(got.statuses, want.statuses);
  }
}

TEST(SoapState, OfAMatrixHasTheSameBitsInEveryBatch) {
  Lab lab;
  const SoapTrace all = soap_trace(lab, 3, 9, 6, 64);
  for (int64_t i = 0; i < 3; ++i) {
    const SoapTrace one = soap_trace(lab, 1, 9, 6, 64, false, i);
    const auto size = static_cast<int64_t>(one.state.size());
    EXPECT_TRUE(std::equal(one.state.begin(), one.state.end(), all.state.begin() + i * size)) << i;
    EXPECT_TRUE(std::equal(one.outs[3].begin(), one.outs[3].end(), all.outs[3].begin() + i * 54)) << i;
  }
}

TEST(SoapState, OfSkippedAndNonFiniteMatricesStays) {
  Lab lab;
  const SoapTrace good = soap_trace(lab, 3, 6, 6, 8), bad = soap_trace(lab, 3, 6, 6, 8, true);
  const size_t each = good.state.size() / 3;
  EXPECT_EQ(bad.statuses, (std::vector<int32_t>{0, 0, static_cast<int32_t>(MatrixStatus::not_finite)}));
  for (const size_t i : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(bad.state[(i + 1) * each - 1], 3) << "steps";
    for (size_t k = 0; k < 36; ++k) EXPECT_EQ(bad.outs[3][i * 36 + k], 0);
  }
  EXPECT_EQ(bad.state[2 * each - 1], 4);
  EXPECT_TRUE(std::equal(good.state.begin() + static_cast<long>(each),
                         good.state.begin() + static_cast<long>(2 * each),
                         bad.state.begin() + static_cast<long>(each)));
}

}  // namespace
}  // namespace sherd::test
