// Whole runs of the program: one arithmetic, whatever is sharded.
//
// Runs every pair of values of strategy, layout and replica arrangement; tests/fsdp/parity_test.cpp has all
// triples in one process. With SHERD_NIGHTLY set, the program runs all of them, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "programs/runs/outcome.h"

namespace sherd::test {
namespace {

// d = 36 is divisible by neither 4 ranks' slices nor 64; heads of 12.
Outcome train_dense(const Flags& extra) {
  return train_quietly(Flags{"--steps", "20", "--dim", "36", "--layers", "3", "--heads", "3", "--seq", "24",
                             "--batch", "12", "--ranks", "4", "--seed", "5"} +
                       extra);
}

// Flags of the runs to compare. Every pair: with each strategy, each layout comes once, and with it the
// replica arrangement whose index is the sum of theirs, so that each strategy and each layout meet all
// arrangements.
std::vector<Flags> arrangements(bool all) {
  const std::vector<Flags> replicas = {{}, {"--replicas", "2"}, {"--replicas", "2", "--outer", "optim"}};
  const Flags layouts = {"ragged", "even_rows", "whole_param"};
  std::vector<Flags> result;
  for (size_t s = 0; s < kStrategies.size(); ++s)
    for (size_t l = 0; l < layouts.size(); ++l)
      for (size_t r = 0; r < replicas.size(); ++r)
        if (all || r == (s + l) % replicas.size())
          result.push_back(replicas[r] + Flags{"--layout", layouts[l], "--strategy", kStrategies[s],
                                               "--recompute", (s + l) % 2 == 0 ? "none" : "blocks"});
  return result;
}

class ParityRun : public ::testing::TestWithParam<Flags> {};

TEST_P(ParityRun, EveryStrategyLayoutAndReplicaArrangementHasTheSameBits) {
  const Outcome want = train_dense(GetParam() + Flags{"--strategy", "no_shard"});
  ASSERT_EQ(want.losses.size(), 20u);
  EXPECT_LT(want.losses.back(), want.losses.front());
  for (const Flags& arrangement : arrangements(nightly())) {
    const Flags flags = GetParam() + arrangement;
    EXPECT_TRUE(train_dense(flags) == want) << show(flags);
  }
}

std::string variant_name(const ::testing::TestParamInfo<Flags>& variant) {
  return std::vector<std::string>{
      "AdamW", "Muon", "MuonBf16", "MuonClip", "MuonFraction", "SixteenBits"}[variant.index];
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ParityRun,
                         ::testing::Values(Flags{"--optimizer", "adamw"}, Flags{"--optimizer", "muon"},
                                           Flags{"--optimizer", "muon", "--precision", "bf16"},
                                           Flags{"--optimizer", "muon", "--qk-clip", "0.02"},
                                           Flags{"--optimizer", "muon", "--muon-fraction", "0.25"},
                                           Flags{"--optimizer", "normuon", "--precision", "bf16", "--master",
                                                 "bf16", "--state-dtype", "bf16", "--qk-clip", "0.02"}),
                         variant_name);

TEST(ProgramRun, AccumulationAgreesInsideAFamilyAndNearlyAcross) {
  for (const char* optimizer : {"adamw", "muon"}) {
    std::vector<Outcome> runs;
    for (auto& s : kStrategies)
      runs.push_back(train_dense({"--strategy", s, "--grad-accum", "3", "--optimizer", optimizer}));
    EXPECT_TRUE(runs[0] == runs[1]);
    EXPECT_TRUE(runs[2] == runs[3]);
    for (size_t i = 0; i < runs[0].losses.size(); ++i)
      EXPECT_NEAR(runs[0].losses[i], runs[2].losses[i], 1e-5 * runs[0].losses[i]) << i;
  }
}

// Blocks of 15,552 elements of matrices: buckets of a part of a block, of two, and of all three.
TEST(ProgramRun, BucketsThatSpanBlocksHaveTheBitsOfRagged) {
  const Flags muon = {"--optimizer", "muon", "--steps", "8"};
  for (const char* strategy : {"zero1", "zero2"}) {
    for (const Flags& ranks : {Flags{"--ranks", "1"}, Flags{"--ranks", "3", "--grad-accum", "2"},
                               Flags{"--ranks", "4", "--recompute", "blocks"}}) {
      const Flags base = muon + ranks + Flags{"--strategy", strategy};
      const Outcome want = train_dense(base);
      for (const char* size : {"1", "20000", "0"}) {
        const Flags flags = base + Flags{"--layout", "whole_param", "--bucket-size", size};
        EXPECT_TRUE(train_dense(flags) == want) << show(flags);
      }
    }
  }
}

TEST(ProgramRun, OneRankAndFourAgreeOverTenSteps) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const Outcome four = train_dense({"--optimizer", optimizer, "--steps", "10"});
    const Outcome one = train_dense({"--optimizer", optimizer, "--steps", "10", "--ranks", "1"});
    for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(one.losses[i], four.losses[i], 1e-5 * one.losses[i]) << i;
  }
}

TEST(ProgramRun, MoreRanksThanRowsOfSomeTensors) {
  const Flags flags = {"--ranks", "8", "--dim", "6", "--heads", "2", "--batch", "8", "--steps", "6"};
  const Outcome want = train_dense(flags + Flags{"--strategy", "no_shard"});
  for (const char* layout : {"ragged", "even_rows", "whole_param"})
    EXPECT_TRUE(train_dense(flags + Flags{"--layout", layout, "--optimizer", "adamw"}) == want) << layout;
}

TEST(ProgramRun, WeightsGoOutAndComeBack) {
  const auto weights = scratch("first");
  const Outcome start = train_dense({"--steps", "0"});
  write_file(weights, start.weights);
  const Outcome direct = train_dense({"--steps", "5"});
  const Outcome again =
      train_dense({"--steps", "5", "--init-weights", weights.string(), "--seed", "99", "--replicas", "2"});
  EXPECT_TRUE(direct == again);
}

TEST(ProgramRun, MetricsHoldEveryFieldOfEveryStep) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  const Finished f = run_train_gpt({"--data",   data.string(), "--metrics",    metrics.string(),
                                    "--steps",  "4",           "--ranks",      "2",
                                    "--dim",    "16",          "--layers",     "2",
                                    "--heads",  "2",           "--seq",        "16",
                                    "--batch",  "4",           "--eval-every", "2",
                                    "--sample", "20"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  std::ifstream in(metrics);
  std::string first;
  std::getline(in, first);
  EXPECT_EQ(nlohmann::json::parse(first)["config"]["strategy"], "optim_grads_params");
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
    for (const char* field : {"loss", "grad_norm", "num_zeros", "skipped", "skipped_steps", "lr",
                              "tokens_per_s", "step_ms", "optim_ms", "comm", "peak_bytes", "host_syncs"})
      EXPECT_TRUE(steps[i].contains(field)) << field;
    EXPECT_EQ(steps[i].contains("eval_loss"), i % 2 == 1);
    // Two blocks and the root: 3 gathers forward, 2 backward; 3 reductions; all-reduces to clip, of the loss and of
    // what ranks report.
    EXPECT_EQ(steps[i]["comm"]["all_gather"]["calls"], 5);
    EXPECT_EQ(steps[i]["comm"]["reduce_scatter"]["calls"], 3);
    EXPECT_EQ(steps[i]["comm"]["all_reduce"]["calls"], 3);
  }
  // A line has the arrivals of collectives that have completed by then: on a loaded machine some lines have none.
  EXPECT_TRUE(std::ranges::any_of(steps, [](const auto& step) { return step.contains("arrival_ms"); }));
  EXPECT_NE(f.out.find("memory per rank"), std::string::npos);
  EXPECT_EQ(f.out.find('\r'), std::string::npos) << "plain lines in a pipe";
}

}  // namespace
}  // namespace sherd::test
