// Every strategy, layout, prefetch depth and replica arrangement computes the same bits.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "fsdp/same_result.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

std::string describe(const ToyRun& r) {
  return fmt::format("ranks {} replicas {} {} outer {} layout {} prefetch {} accumulate {} {}", r.ranks,
                     r.replicas, name_of(r.options.strategy), name_of(r.options.outer),
                     name_of(r.options.layout), r.root.prefetch, r.accumulate, name_of(r.optimizer));
}

constexpr LayoutPolicy kLayouts[] = {LayoutPolicy::ragged, LayoutPolicy::even_rows,
                                     LayoutPolicy::whole_param};

class Parity : public ::testing::TestWithParam<std::tuple<int, Algorithm>> {};

TEST_P(Parity, StrategiesAndLayoutsAgreeInBits) {
  ToyRun run;
  run.ranks = std::get<0>(GetParam());
  run.rows = 8 * run.ranks;
  run.optimizer = std::get<1>(GetParam());
  run.options.strategy = Strategy::no_shard;
  const ToyResult want = run_toy(run);
  EXPECT_TRUE(std::isfinite(want.losses.back()));
  for (Strategy s : kEveryStrategy) {
    for (LayoutPolicy l : kLayouts) {
      run.options.strategy = s;
      run.options.layout = l;
      expect_same_bits(run_toy(run), want, describe(run));
    }
  }
}

std::string parity_name(const ::testing::TestParamInfo<std::tuple<int, Algorithm>>& info) {
  return fmt::format("Ranks{}_{}", std::get<0>(info.param), name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Worlds, Parity,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(Algorithm::adamw, Algorithm::muon)),
                         parity_name);

class Hsdp : public ::testing::TestWithParam<std::tuple<int, Algorithm>> {};

TEST_P(Hsdp, AgreesWithFlatInBits) {
  ToyRun run{.ranks = std::get<0>(GetParam()), .optimizer = std::get<1>(GetParam())};
  run.options.strategy = Strategy::no_shard;
  const ToyResult want = run_toy(run);
  for (const int replicas : {2, run.ranks}) {
    for (Outer o : {Outer::no_shard, Outer::optim}) {
      for (Strategy s : kEveryStrategy) {
        for (LayoutPolicy l : kLayouts) {
          run.replicas = replicas;
          run.options.strategy = s;
          run.options.outer = o;
          run.options.layout = l;
          expect_same_bits(run_toy(run), want, describe(run));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Hsdp,
                         ::testing::Combine(::testing::Values(4, 8),
                                            ::testing::Values(Algorithm::adamw, Algorithm::muon)),
                         parity_name);

TEST(ParityOptions, PrefetchReshardAndOverlapDoNotChangeBits) {
  ToyRun run{.ranks = 3};
  const ToyResult want = run_toy(run);
  for (const int prefetch : {0, 2, 5}) {
    for (const bool reshard : {true, false}) {
      for (const bool overlap : {true, false}) {
        run.root.prefetch = prefetch;
        run.options.reshard_after_forward = reshard;
        run.root.overlap_reduce = overlap;
        expect_same_bits(run_toy(run), want, describe(run));
      }
    }
  }
}

TEST(ParityOptions, GradientAccumulationAgreesInsideAFamily) {
  for (const int replicas : {1, 2}) {
    ToyRun run{.ranks = 4, .replicas = replicas, .accumulate = 3};
    auto result = [&](Strategy s, LayoutPolicy l) {
      run.options.strategy = s;
      run.options.layout = l;
      return run_toy(run);
    };
    const ToyResult zero0 = result(Strategy::no_shard, LayoutPolicy::ragged);
    const ToyResult zero2 = result(Strategy::optim_grads, LayoutPolicy::ragged);
    for (LayoutPolicy l : kLayouts) {
      expect_same_bits(result(Strategy::optim, l), zero0, "zero1 and zero0");
      expect_same_bits(result(Strategy::optim_grads_params, l), zero2, "zero3 and zero2");
    }
    for (size_t i = 0; i < zero0.losses.size(); ++i)
      EXPECT_NEAR(zero0.losses[i], zero2.losses[i], 1e-5 * zero0.losses[i]) << "step " << i;
  }
}

TEST(ParityOptions, OneRankAndManyAgreeToRounding) {
  ToyRun run{.steps = 10};
  const ToyResult one = run_toy(run);
  run.ranks = 4;
  const ToyResult four = run_toy(run);
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(one.losses[i], four.losses[i], 1e-5 * one.losses[i]) << "step " << i;
}

TEST(ParityOptions, Bf16ComputeAgreesInBitsAmongStrategies) {
  ToyRun run{.ranks = 4, .steps = 8};
  run.options.compute_dtype = DType::bf16;
  run.options.strategy = Strategy::no_shard;
  const ToyResult want = run_toy(run);
  EXPECT_LT(want.losses.back(), want.losses.front());
  for (const int replicas : {1, 2}) {
    for (Outer o : {Outer::no_shard, Outer::optim}) {
      for (Strategy s : kEveryStrategy) {
        for (LayoutPolicy l : kLayouts) {
          run.replicas = replicas;
          run.options.outer = o;
          run.options.strategy = s;
          run.options.layout = l;
          expect_same_bits(run_toy(run), want, describe(run));
        }
      }
    }
  }
}

TEST(ParityOptions, Bf16ReductionAgreesAmongStrategiesAndNearlyWithF32) {
  ToyRun run{.ranks = 4};
  const ToyResult f32 = run_toy(run);
  run.options.reduce_dtype = DType::bf16;
  run.options.strategy = Strategy::no_shard;
  const ToyResult want = run_toy(run);
  for (Strategy s : kEveryStrategy) {
    for (LayoutPolicy l : kLayouts) {
      run.options.strategy = s;
      run.options.layout = l;
      expect_same_bits(run_toy(run), want, describe(run));
    }
  }
  EXPECT_NE(want.norms, f32.norms);  // it did round
  // Two roundings to 8 bits of mantissa for each element: 2^-8 on the norm at the very most.
  EXPECT_NEAR(want.norms[0], f32.norms[0], std::ldexp(f32.norms[0], -8));
}

}  // namespace
}  // namespace sherd::test
