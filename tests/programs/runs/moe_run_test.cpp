// Runs with experts: the results of one rank, on whichever ranks the experts are.

#include <array>
#include <cstdio>

#include <sherd/checkpoint/safetensors/safetensors.h>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

// The last of equal flags counts: `extra` overrides.
Flags expert_flags(const Flags& extra) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  return Flags{"--data",   data.string(), "--quiet", "--steps", "20",    "--dim",     "36",
               "--layers", "3",           "--heads", "3",       "--seq", "24",        "--batch",
               "12",       "--ranks",     "4",       "--seed",  "5",     "--experts", "4"} +
         extra;
}

Outcome train_experts(const Flags& extra) { return train_quietly(expert_flags(extra)); }

// Norms react to a token that changes its expert for a last bit.
void expect_close(const Outcome& got, const Outcome& want, double tolerance, const std::string& what) {
  expect_close_losses(got, want, tolerance, what);
  for (size_t i = 0; i < want.norms.size(); ++i)
    EXPECT_NEAR(got.norms[i], want.norms[i], 100 * tolerance) << what << " step " << i + 1;
}

class MoeRun : public ::testing::TestWithParam<const char*> {};

TEST_P(MoeRun, EveryDivisionOfTheExpertsAgreesWithOneRank) {
  const Flags top_k = {"--expert-top-k", GetParam()};
  const Outcome one = train_experts(top_k + Flags{"--ranks", "1"});
  ASSERT_EQ(one.losses.size(), 20u);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.5);
  for (const Flags& ranks :
       {Flags{"--ranks", "4"}, Flags{"--ranks", "4", "--expert-parallel", "2"},
        Flags{"--ranks", "4", "--expert-parallel", "4"}, Flags{"--ranks", "6", "--tp", "3"},
        Flags{"--ranks", "6", "--tp", "3", "--expert-parallel", "2"},
        Flags{"--ranks", "6", "--expert-parallel", "2", "--strategy", "zero0"}})
    expect_close(train_experts(top_k + ranks), one, 1e-4, show(ranks));
}

TEST_P(MoeRun, BalancingCountsTheChoicesOfAllRanks) {
  // Strong enough that counting each rank's own would show.
  const Flags base = {"--expert-top-k", GetParam(), "--moe-aux", "0.1"};
  const Outcome one = train_experts(base + Flags{"--ranks", "1"});
  for (const Flags& ranks : {Flags{"--ranks", "4"}, Flags{"--ranks", "4", "--expert-parallel", "2"}})
    expect_close(train_experts(base + ranks), one, 1e-4, show(ranks));
}

// The balancing loss is of each microbatch: off.
TEST_P(MoeRun, MicrobatchesAgreeWithOneBatch) {
  const Flags base = {"--expert-top-k", GetParam(), "--moe-aux", "0"};
  const Flags accumulated = {"--ranks", "2", "--expert-parallel", "2", "--grad-accum", "3"};
  expect_close(train_experts(base + accumulated), train_experts(base + Flags{"--ranks", "1"}), 1e-4,
               show(accumulated));
}

TEST_P(MoeRun, StrategiesReplicasAndLayoutsHaveTheSameBits) {
  const Flags base = {"--expert-top-k", GetParam(), "--expert-parallel", "2", "--steps", "8"};
  const Outcome want = train_experts(base + Flags{"--strategy", "zero0"});
  for (const Flags& replicas :
       {Flags{}, Flags{"--replicas", "2"}, Flags{"--replicas", "4", "--outer", "optim"}})
    for (const char* layout : {"ragged", "even_rows"})
      for (auto& strategy : kStrategies) {
        const Flags flags = base + replicas + Flags{"--layout", layout, "--strategy", strategy};
        EXPECT_TRUE(train_experts(flags) == want) << show(flags);
      }
  for (const Flags& flags : {Flags{"--prefetch", "0"}, Flags{"--prefetch", "3"},
                             Flags{"--reshard-after-forward", "false"}, Flags{"--recompute", "blocks"}})
    EXPECT_TRUE(train_experts(base + flags) == want) << show(flags);
}

// Experts are sharded over all ranks that hold them, whatever --replicas says. With as many replicas as ranks they are
// scattered each microbatch under zero2 and zero3, unlike all else.
TEST_P(MoeRun, AccumulationAgreesInsideAFamilyAndNearlyAcross) {
  for (const Flags& extra : {Flags{"--optimizer", "muon"}, Flags{"--expert-parallel", "2"},
                             Flags{"--expert-parallel", "4", "--optimizer", "muon"}}) {
    const Flags base = Flags{"--expert-top-k", GetParam(), "--grad-accum", "3", "--steps", "6"} + extra;
    const auto same = [&](const Flags& a, const Flags& b) {
      const Outcome first = train_experts(base + a), second = train_experts(base + b);
      EXPECT_TRUE(first == second) << show(base + a) << "beside " << show(b);
      return first;
    };
    const Outcome kept = same({"--strategy", "zero0"}, {"--strategy", "zero1", "--replicas", "2"}),
                  scattered = same({"--strategy", "zero2"}, {"--strategy", "zero3", "--recompute", "blocks"});
    same({"--strategy", "zero2", "--replicas", "2"}, {"--strategy", "zero3", "--replicas", "2"});
    same({"--strategy", "zero2", "--replicas", "4"}, {"--strategy", "zero3", "--replicas", "4"});
    expect_close_losses(scattered, kept, 1e-4, show(base));
  }
}

INSTANTIATE_TEST_SUITE_P(TopK, MoeRun, ::testing::Values("1", "2"),
                         [](const auto& k) { return std::string("Top") + k.param; });

TEST(MoeRuns, MuonTrainsExpertStacksBesideDenseMatrices) {
  const Flags muon = {"--optimizer", "muon"};
  const Flags divided = muon + Flags{"--expert-parallel", "2"};
  const Outcome one = train_experts(muon + Flags{"--ranks", "1"}),
                want = train_experts(divided + Flags{"--strategy", "zero0"});
  expect_close_losses(want, one, 1e-4, "muon");
  for (const Flags& flags :
       {Flags{"--strategy", "zero2", "--replicas", "2"},
        Flags{"--muon-mode", "owner", "--muon-transient", "64K"}, Flags{"--muon-mode", "gather"},
        Flags{"--layout", "whole_param"}, Flags{"--layout", "even_rows"},
        Flags{"--layout", "whole_param", "--strategy", "zero1"},
        Flags{"--layout", "whole_param", "--strategy", "zero2", "--bucket-size", "5000"},
        Flags{"--layout", "whole_param", "--strategy", "zero2", "--bucket-size", "1", "--replicas", "2"}})
    EXPECT_TRUE(train_experts(divided + flags) == want) << show(flags);
}

TEST(MoeRuns, Bf16StrategiesHaveTheSameBits) {
  const Flags base = {"--expert-parallel", "2", "--precision", "bf16", "--steps", "6"};
  EXPECT_TRUE(train_experts(base + Flags{"--strategy", "zero0"}) ==
              train_experts(base + Flags{"--replicas", "2"}));
}

TEST(MoeRuns, InitialWeightsAreTheSameBytesOnEveryDivision) {
  const Outcome want = train_experts({"--steps", "0", "--ranks", "1"});
  for (const Flags& flags :
       {Flags{}, Flags{"--expert-parallel", "2"}, Flags{"--expert-parallel", "4", "--strategy", "zero0"},
        Flags{"--expert-parallel", "2", "--replicas", "2", "--layout", "even_rows"}})
    EXPECT_TRUE(train_experts(Flags{"--steps", "0"} + flags).weights == want.weights) << show(flags);
  const auto file = scratch("moe.safetensors");
  write_file(file, want.weights);
  const SafetensorsReader reader(file);
  ASSERT_NE(reader.find("blocks.2.moe.experts.out.weight"), nullptr);
  EXPECT_EQ(reader.find("blocks.2.moe.experts.out.weight")->shape, (Shape{4, 36, 144}));
  EXPECT_EQ(reader.find("blocks.2.moe.experts.fc.bias")->shape, (Shape{4, 144}));
  EXPECT_EQ(reader.find("blocks.2.moe.router.weight")->shape, (Shape{4, 36}));
}

TEST(MoeRuns, WeightsMoveBetweenDivisions) {
  const auto file = scratch("trained.safetensors");
  write_file(file, train_experts({"--steps", "3", "--expert-parallel", "4"}).weights);
  const Flags from = {"--steps", "0", "--seed", "77", "--init-weights", file.string()};
  for (const char* parts : {"1", "2", "4"})
    EXPECT_TRUE(train_experts(from + Flags{"--expert-parallel", parts}).weights == read_file(file)) << parts;
}

TEST(MoeRuns, MemoryFallsWithTheShards) {
  const auto run = [&](const char* strategy) {
    return run_train_gpt(expert_flags({"--expert-parallel", "2", "--steps", "2", "--dim", "96", "--layers",
                                       "8", "--memory-limit", "26M", "--strategy", strategy}));
  };
  // With AdamW 24 MiB under zero0 (half of the experts, all the rest), 14 under zero3; activations take 8.
  const Finished whole = run("zero0"), sharded = run("zero3");
  EXPECT_EQ(whole.exit_code, 1);
  EXPECT_THAT(whole.err, HasSubstr("over the memory limit"));
  EXPECT_EQ(sharded.exit_code, 0) << sharded.err;
}

TEST(MoeRuns, ReplicasShardExpertsAllTheSame) {
  const auto printed = [&](const Flags& extra) {
    Flags flags = expert_flags(Flags{"--steps", "1", "--replicas", "4", "--expert-parallel", "2"} + extra);
    std::erase(flags, "--quiet");
    const Finished f = run_train_gpt(flags);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return f.out;
  };
  // Largest memory of parameters, gradients and optimizer state, in percent of that of a single rank.
  const auto largest = [](const std::string& out) {
    std::array<double, 3> percent = {};
    const size_t at = out.find("largest rank");
    EXPECT_NE(at, out.npos) << out;
    if (at == out.npos) return percent;
    EXPECT_EQ(std::sscanf(out.c_str() + at, "largest rank %lf %% %lf %% %lf", &percent[0], &percent[1],
                          &percent[2]),
              3);
    return percent;
  };
  // Half of the experts and all the rest is about 60 %.
  const auto outer = largest(printed({"--strategy", "zero0", "--outer", "optim"}));
  EXPECT_LT(outer[2], 30) << "--outer alone shards the states of experts, too";
  EXPECT_GT(outer[0], 50);
  EXPECT_GT(largest(printed({"--strategy", "zero0"}))[2], 50);
  EXPECT_THAT(printed({"--strategy", "zero1"}), HasSubstr("optim has nothing but the experts to shard over"));
  EXPECT_THAT(printed({"--strategy", "zero1", "--expert-parallel", "4"}),
              HasSubstr("optim has nothing to shard over"));
  EXPECT_THAT(printed({"--layout", "whole_param"}), HasSubstr(" % of all buffers is padding"));
}

TEST(MoeRuns, BadDivisionsAreUsageErrors) {
  for (const Flags& flags :
       {Flags{"--expert-parallel", "3"}, Flags{"--experts", "0", "--expert-parallel", "2"},
        Flags{"--experts", "1"}, Flags{"--expert-top-k", "9"}}) {
    const Finished f = run_train_gpt(expert_flags(flags));
    EXPECT_EQ(f.exit_code, 2) << show(flags) << f.err;
    EXPECT_THAT(f.err, HasSubstr("expert")) << show(flags);
  }
}

TEST(MoeRuns, ExchangesAreCounted) {
  const auto metrics = scratch("metrics");
  const Finished f = run_train_gpt(expert_flags({"--steps", "2", "--expert-parallel", "2", "--metrics",
                                                 metrics.string(), "--eval-every", "2", "--sample", "5"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  // In each of three blocks: counts, rows there and back, gradients there and back.
  EXPECT_EQ(read_steps(metrics)[0]["comm"]["all_to_all_v"]["calls"], 15);
  EXPECT_TRUE(read_steps(metrics)[1].contains("eval_loss"));
}

}  // namespace
}  // namespace sherd::test
