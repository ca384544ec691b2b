// Masks that do not depend on ranks and microbatches, and are the same in backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/random/random.h>
#include <sherd/nn/nn.h>

namespace sherd::test {
namespace {

constexpr int64_t kBatch = 24, kMaskColumns = 7;
constexpr float kP = 0.3f;

std::vector<float> floats(const Tensor& t) { return ops::to_floats(t.device().compute(), t); }

Tensor ones(Device& device, Shape shape, DType dtype = DType::f32) {
  Tensor x = Tensor::empty(device, std::move(shape), dtype, "test");
  ops::fill(device.compute(), x, 1);
  return x;
}

/// Two sites, the second used twice, as one rank's microbatch of `count` rows sees them.
std::vector<float> model(Device& device, nn::RandomState& random, int64_t step, int64_t first,
                         int64_t count) {
  random.begin(step, first);
  nn::Tape tape;
  nn::Var x = tape.input(ones(device, {count, kMaskColumns}));
  x = nn::dropout(x, kP, random, "a");
  x = nn::dropout(x, kP, random, "b");
  return floats(nn::dropout(x, kP, random, "b").value());
}

TEST(Dropout, MasksAreTheSameForAnyRanksAndMicrobatches) {
  std::vector<float> whole;
  for (const int64_t step : {0, 5}) {
    for (const int ranks : {1, 2, 4, 5}) {  // 24 rows on 5 ranks: the last has fewer
      for (const int microbatches : {1, 2, 3}) {
        std::vector<float> all;
        const auto cut = [&](int64_t i, int64_t pieces) {
          return std::min(kBatch, (kBatch + pieces - 1) / pieces * i);
        };
        // Every rank and microbatch has a piece of the batch's rows; put together in their order.
        for (int rank = 0; rank < ranks; ++rank) {
          auto device = make_cpu_device();
          nn::RandomState random(11);
          for (int micro = 0; micro < microbatches; ++micro) {
            const int64_t piece = rank * microbatches + micro, pieces = int64_t{ranks} * microbatches;
            const std::vector<float> part =
                model(*device, random, step, cut(piece, pieces), cut(piece + 1, pieces) - cut(piece, pieces));
            all.insert(all.end(), part.begin(), part.end());
          }
        }
        if (ranks == 1 && microbatches == 1) {
          EXPECT_NE(all, whole);  // that of the step before
          whole = all;
        }
        EXPECT_EQ(all, whole) << ranks << " ranks, " << microbatches << " microbatches, step " << step;
      }
    }
  }
}

TEST(Dropout, SeedStepSiteAndCallEachChangeTheMask) {
  auto device = make_cpu_device();
  nn::Tape tape;
  const nn::Var x = tape.input(ones(*device, {16, 16}));
  const auto mask = [&](uint64_t seed, int64_t step, const char* site, int calls_before) {
    nn::RandomState random(seed);
    random.begin(step, 0);
    for (int i = 0; i < calls_before; ++i) random.next(site);
    return floats(nn::dropout(x, 0.5f, random, site).value());
  };
  const std::vector<std::vector<float>> masks = {mask(1, 0, "a", 0), mask(2, 0, "a", 0), mask(1, 1, "a", 0),
                                                 mask(1, 0, "b", 0), mask(1, 0, "a", 1), mask(2, 1, "a", 0)};
  for (size_t i = 0; i < masks.size(); ++i)
    for (size_t k = 0; k < masks.size(); ++k) {
      int64_t equal = 0;
      for (size_t e = 0; e < masks[i].size(); ++e) equal += masks[i][e] == masks[k][e];
      if (i == k)
        EXPECT_EQ(equal, 256);
      else
        EXPECT_NEAR(static_cast<double>(equal), 128, 4 * 8) << i << " " << k;  // four standard deviations
    }
  EXPECT_EQ(mask(1, 0, "a", 0), masks[0]);
}

// A seed and a step are all that a run has to keep: a new object continues with the same masks.
TEST(Dropout, ARunThatIsResumedHasTheSameMasks) {
  auto device = make_cpu_device();
  nn::RandomState through(3), resumed(3);
  for (const int64_t step : {0, 1, 2}) model(*device, through, step, 0, 8);
  EXPECT_EQ(model(*device, through, 3, 0, 8), model(*device, resumed, 3, 0, 8));
}

// A copy of the state from before a forward gives the forward's masks again.
TEST(Dropout, ACopyOfTheStateRepeatsTheCalls) {
  auto device = make_cpu_device();
  nn::RandomState random(3);
  random.begin(0, 0);
  random.next("a");
  nn::RandomState before = random;
  nn::Tape tape;
  const nn::Var x = tape.input(ones(*device, {8, 8}));
  EXPECT_EQ(floats(nn::dropout(x, kP, random, "a").value()), floats(nn::dropout(x, kP, before, "a").value()));
}

TEST(Dropout, BackwardHasTheMaskOfForward) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto device = make_cpu_device();
    nn::RandomState random(1);
    random.begin(0, 3);
    nn::Tape tape;
    const nn::Var x = tape.leaf(ones(*device, {9, 6}, dtype));
    const nn::Var y = nn::dropout(x, kP, random, "a");
    tape.backward(y, ones(*device, {9, 6}, dtype));
    EXPECT_EQ(floats(tape.gradient(x)), floats(y.value()));
    tape.backward(nn::dropout(x.detach() + tape.leaf(ones(*device, {9, 6}, dtype)), kP, random, "a"),
                  nn::Gradient::constant(1));
  }
}

TEST(Dropout, EvaluationAndPZeroLeaveTheValueAlone) {
  auto device = make_cpu_device();
  nn::RandomState random(1);
  nn::Tape tape;
  const nn::Var x = tape.leaf(ones(*device, {4, 4}));
  EXPECT_EQ(nn::dropout(x, 0, random, "a").value().raw(), x.value().raw());
  EXPECT_EQ(nn::dropout(nn::Var(x.value()), kP, random, "a").value().raw(), x.value().raw());
  {
    nn::NoGrad evaluation(tape);
    EXPECT_EQ(nn::dropout(x, kP, random, "a").value().raw(), x.value().raw());
  }
  EXPECT_NE(nn::dropout(x, kP, random, "a").value().raw(), x.value().raw());
  EXPECT_EQ(random.next("a").call, 3u);  // all calls on the tape were counted
  tape.clear();
}

TEST(Dropout, RefusesInvalidProbabilitiesAndRows) {
  auto device = make_cpu_device();
  nn::RandomState random(1);
  nn::Tape tape;
  const nn::Var x = tape.input(ones(*device, {4, 4}));
  for (const float p : {-0.1f, 1.0f, 2.0f, std::nanf("")})
    EXPECT_THROW(nn::dropout(x, p, random, "a"), InvalidArgument) << p;
  EXPECT_THROW(random.begin(0, -1), InvalidArgument);
  DropoutKey key = random.next("a");
  key.first_row = -1;
  EXPECT_THROW(nn::dropout(x, 0.5f, key), InvalidArgument);
}

// A scope that is recomputed draws its masks again, wherever else the state was used meanwhile.
TEST(Dropout, RecomputedScopesHaveTheirMasks) {
  auto device = make_cpu_device();
  Tensor x = Tensor::empty(*device, {6, 8}, DType::f32, "test");
  ops::random_normal(device->compute(), x, 0, 4, "x", 0, 1);
  const auto gradient = [&](int scopes) {
    nn::RandomState random(3);
    random.begin(1, 0);
    nn::Tape tape;
    const nn::Var leaf = tape.leaf(x);
    const auto part = [&](const nn::Var& in) {
      return nn::dropout(nn::gelu(nn::dropout(in, 0.3f, random, "a")), 0.5f, random, "b");
    };
    nn::Var y = leaf;
    for (int i = 0; i < 3; ++i) y = scopes >= 1 ? nn::recompute(part, y) : part(y);
    if (scopes == 2) {  // all of it again in one scope
      tape.clear();
      random.begin(1, 0);
      const nn::Var again = tape.leaf(x);
      y = nn::recompute(
          [&](nn::Var in) {
            for (int i = 0; i < 3; ++i) in = nn::recompute(part, in);
            return in;
          },
          again);
      tape.backward(nn::sum(y));
      return ops::to_floats(device->compute(), tape.gradient(again));
    }
    tape.backward(nn::sum(y));
    EXPECT_EQ(random.next("a").call, 3u) << "as if nothing had been computed again";
    return ops::to_floats(device->compute(), tape.gradient(leaf));
  };
  const std::vector<float> plain = gradient(0);
  EXPECT_GT(std::count(plain.begin(), plain.end(), 0.0f), 0);
  EXPECT_LT(std::count(plain.begin(), plain.end(), 0.0f), static_cast<int64_t>(plain.size()));
  EXPECT_EQ(gradient(1), plain);
  EXPECT_EQ(gradient(2), plain);
}

}  // namespace
}  // namespace sherd::test
