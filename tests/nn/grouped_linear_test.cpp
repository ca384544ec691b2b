// Products of groups of rows, empty ones among them.

#include <cmath>
#include <limits>

#include "differences.h"
#include "nets.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;
using Offsets = std::vector<int64_t>;

constexpr int64_t kGroups = 5, kOut = 6, kIn = 4;
const Offsets kFirst{0, 0, 3, 3, 4, 4}, kSecond{0, 2, 3, 3, 3, 7}, kNoRows{0, 0, 0, 0, 0, 0};

struct Stack : nn::Module<Stack> {
  Parameter w = param("weight", {kGroups, kOut, kIn}, normal(0.5f));
  Parameter bias = param("bias", {kGroups, kOut}, normal(0.5f));
  bool biased = true;
  Var forward(const Var& x, const Offsets& offsets) {
    return nn::grouped_linear(x, offsets, w, biased ? bias : Parameter());
  }
};

// The same with plain loops.
struct Host {
  std::vector<float> w, bias;
  std::vector<double> dw = std::vector<double>(static_cast<size_t>(kGroups * kOut * kIn)),
                      dbias = std::vector<double>(static_cast<size_t>(kGroups * kOut));

  // Adds to dw and dbias; y and dx.
  std::pair<std::vector<double>, std::vector<double>> run(const std::vector<float>& x,
                                                          const std::vector<float>& dy,
                                                          const Offsets& offsets) {
    std::vector<double> y(dy.size()), dx(x.size());
    for (size_t e = 0; e < kGroups; ++e)
      for (auto r = static_cast<size_t>(offsets[e]); r < static_cast<size_t>(offsets[e + 1]); ++r)
        for (size_t o = 0; o < kOut; ++o) {
          y[r * kOut + o] = bias[e * kOut + o];
          dbias[e * kOut + o] += dy[r * kOut + o];
          for (size_t i = 0; i < kIn; ++i) {
            const size_t at = (e * kOut + o) * kIn + i;
            y[r * kOut + o] += static_cast<double>(w[at]) * x[r * kIn + i];
            dw[at] += static_cast<double>(dy[r * kOut + o]) * x[r * kIn + i];
            dx[r * kIn + i] += static_cast<double>(w[at]) * dy[r * kOut + o];
          }
        }
    return {y, dx};
  }
};

// Sums of at most 14 products of numbers near 1 in f32.
void expect_near(const std::vector<float>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << what << " " << i;
}

TEST(GroupedLinear, HasTheDerivativeByItsInput) {
  launch(1, [](RankContext& rank) {
    Stack model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                {.allow_unused = true});
    runtime_of(model).set_last_microbatch(false);
    for (const bool biased : {true, false}) {
      model.biased = biased;
      expect_gradient([&](Tape&, const auto& v) { return weighted(model(v[0], kFirst)); },
                      {random(*rank.device, {4, kIn}, 9)});
    }
  });
}

// A group may get rows in any of a step's calls, or none: its gradient is what they add up to, and never what its
// memory held before.
TEST(GroupedLinear, AddsUpOverCallsWhateverGroupsHaveRows) {
  for (const auto& calls : std::vector<std::vector<Offsets>>{{kFirst},
                                                             {kNoRows},
                                                             {kFirst, kSecond},
                                                             {kSecond, kFirst},
                                                             {kNoRows, kFirst},
                                                             {kFirst, kNoRows, kSecond}})
    launch(1, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      Stack model;
      fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard});
      Host host{ops::to_floats(s, model.w.shard()), ops::to_floats(s, model.bias.shard())};
      {
        // Freed memory that gradients may get.
        const Tensor dirt = Tensor::empty(*rank.device, {4096}, DType::f32, "test");
        ops::fill(s, dirt, std::numeric_limits<double>::quiet_NaN());
      }
      Tape tape;
      for (size_t i = 0; i < calls.size(); ++i) {
        runtime_of(model).set_last_microbatch(i + 1 == calls.size());
        const int64_t n = calls[i].back();
        const Var x = tape.leaf(random(*rank.device, {n, kIn}, i));
        const Tensor dy = random(*rank.device, {n, kOut}, 100 + i);
        const Var y = model(x, calls[i]);
        const auto [want, dx] = host.run(ops::to_floats(s, x.value()), ops::to_floats(s, dy), calls[i]);
        expect_near(ops::to_floats(s, y.value()), want, "y");
        tape.backward(y, dy);
        expect_near(ops::to_floats(s, tape.gradient(x)), dx, "dx");
      }
      expect_near(ops::to_floats(s, model.w.grad_shard()), host.dw, "dw");
      expect_near(ops::to_floats(s, model.bias.grad_shard()), host.dbias, "dbias");
    });
}

TEST(GroupedLinear, LeavesGradientsOfFrozenParametersOut) {
  for (const bool weight : {true, false})
    launch(1, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      Stack model;
      Parameter frozen = weight ? model.w : model.bias, trained = weight ? model.bias : model.w;
      frozen.freeze();
      fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {});
      Tape tape;
      const Var x = tape.leaf(random(*rank.device, {4, kIn}, 1));
      tape.backward(nn::sum(model(x, kFirst)));
      EXPECT_TRUE(tape.gradient(x).defined());
      double squares = 0;
      for (const float g : ops::to_floats(s, trained.grad_shard())) squares += static_cast<double>(g) * g;
      EXPECT_GT(squares, 0);
    });
}

TEST(GroupedLinear, NamesWhatDoesNotFit) {
  launch(1, [](RankContext& rank) {
    Stack model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {});
    const auto expect_error = [&](Shape shape, const Offsets& offsets, const char* message) {
      try {
        model(Var(random(*rank.device, std::move(shape), 1)), offsets);
        ADD_FAILURE() << "nothing was thrown; wanted " << message;
      } catch (const ShapeMismatch& e) {
        EXPECT_THAT(e.what(), HasSubstr(message));
      }
    };
    expect_error({4, 3}, kFirst, "x is [4, 3], weight is [5, 6, 4], bias is [5, 6]; wanted are x [n, in]");
    expect_error({4}, kFirst, "x is [4]");
    expect_error({4, kIn}, {}, "offsets [] for 5 groups of 4 rows");
    expect_error({4, kIn}, {0, 4}, "offsets [0, 4] for 5 groups of 4 rows; wanted are 6 numbers from 0 to 4");
    expect_error({4, kIn}, {0, 1, 2, 3, 3, 5}, "offsets [0, 1, 2, 3, 3, 5] for 5 groups of 4 rows");
    expect_error({4, kIn}, {1, 1, 2, 3, 3, 4}, "from 0 to 4");
    expect_error({4, kIn}, {0, 3, 2, 3, 3, 4}, "none smaller than the one before");
  });
}

}  // namespace
}  // namespace sherd::test
