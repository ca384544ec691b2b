// Gradients that are sums of several backwards of a step (microbatches, a unit called more than once):
// arrangements that agree in bits, and those that agree to rounding.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "support/chain.h"

namespace sherd::test {
namespace {

constexpr int kRanks = 4;

struct Arrangement {
  Strategy strategy;
  Outer outer;
  int replicas;
  DType reduce_dtype = DType::f32;

  std::string describe() const {
    return fmt::format("{}, {} replica(s), outer {}", name_of(strategy), replicas, name_of(outer));
  }
  // Returns the family as fsdp/strategy.h describes it.
  std::string family(bool several) const {
    const bool scatters = strategy == Strategy::optim_grads || strategy == Strategy::optim_grads_params;
    if (several && scatters && replicas < kRanks) return fmt::format("scattered, replicas {}", replicas);
    return reduce_dtype == DType::f32 ? "all" : fmt::format("all, replicas {}", replicas);
  }
};

std::vector<float> train(const Arrangement& a, int accumulate, bool twice) {
  std::vector<float> all;
  launch(kRanks, [&](RankContext& r) {
    ChainRig rig(r, {.strategy = a.strategy, .outer = a.outer, .reduce_dtype = a.reduce_dtype}, 2,
                 a.replicas);
    if (twice) rig.model.order = {0, 1, 0};
    for (int step = 0; step < 3; ++step) rig.step(step * accumulate, accumulate);
    for (auto& w : rig.weights())
      if (r.world->rank() == 0) all.insert(all.end(), w.begin(), w.end());
  });
  return all;
}

void expect_families(int accumulate, bool twice, DType reduce_dtype) {
  std::map<std::string, std::vector<float>> families;
  std::vector<float> first;
  for (const int replicas : {1, 2, kRanks}) {
    for (const Outer outer : {Outer::no_shard, Outer::optim}) {
      for (Strategy s : kEveryStrategy) {
        const Arrangement a{s, outer, replicas, reduce_dtype};
        const std::vector<float> got = train(a, accumulate, twice);
        const auto [known, fresh] = families.try_emplace(a.family(accumulate > 1 || twice), got);
        EXPECT_EQ(got, known->second) << a.describe();
        if (first.empty()) first = got;
        // Adam's updates are of the size of the learning rate, 0.01: a gradient near zero decides on its
        // sign.
        for (size_t i = 0; fresh && reduce_dtype == DType::f32 && i < got.size(); ++i)
          ASSERT_NEAR(got[i], first[i], 1e-4f) << a.describe();
      }
    }
  }
}

TEST(Families, OneBackwardAStepGivesOneFamily) { expect_families(1, false, DType::f32); }

TEST(Families, GradientAccumulationSetsThoseApartThatScatterEachMicrobatch) {
  expect_families(3, false, DType::f32);
}

TEST(Families, SoDoesAUnitThatIsCalledTwice) { expect_families(1, true, DType::f32); }

TEST(Families, ReductionIn16BitsSetsReplicasApartToo) {
  expect_families(1, false, DType::bf16);
  expect_families(2, false, DType::bf16);
}

}  // namespace
}  // namespace sherd::test
