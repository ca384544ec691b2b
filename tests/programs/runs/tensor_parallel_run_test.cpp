// Whole runs with tensor parallelism: one rank's losses to rounding, the same bits whatever is sharded.

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

const Flags kModel = {"--steps", "20",    "--dim", "48",      "--layers", "2",      "--heads",
                      "4",       "--seq", "24",    "--batch", "8",        "--seed", "5"};

Outcome train(const Flags& extra) { return train_quietly(kModel + extra); }

const std::vector<Flags> kArrangements = {{"--ranks", "2", "--tp", "2"},
                                          {"--ranks", "4", "--tp", "4"},
                                          {"--ranks", "4", "--tp", "2"},
                                          {"--ranks", "8", "--tp", "2", "--replicas", "2"}};

TEST(TensorParallelRun, LossesAreThoseOfOneRankAndStrategiesAgreeInBits) {
  const Outcome one = train({"--ranks", "1"});
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Flags& arrangement : kArrangements) {
    const Outcome want = train(arrangement + Flags{"--strategy", "no_shard"});
    expect_close_losses(want, one, 1e-4, show(arrangement));
    for (size_t i = 0; i < one.norms.size(); ++i)
      EXPECT_NEAR(want.norms[i], one.norms[i], 1e-3 * one.norms[i]) << show(arrangement) << i;
    // With one data-parallel rank nothing is sharded, and one strategy stands for all.
    const bool shards = arrangement[1] != arrangement[3];
    for (const char* layout : {"ragged", "even_rows"}) {
      for (auto& strategy : kStrategies) {
        if (!shards && strategy != "optim_grads_params") continue;
        const Flags flags = arrangement + Flags{"--layout", layout, "--strategy", strategy};
        EXPECT_TRUE(train(flags) == want) << show(flags);
      }
    }
    if (arrangement.size() > 4) {
      EXPECT_TRUE(train(arrangement + Flags{"--outer", "optim"}) == want);
      EXPECT_TRUE(train({"--ranks", "8", "--tp", "2"}) == want) << "replicas change no bit";
    }
  }
}

TEST(TensorParallelRun, AccumulationAgreesInsideAFamilyAndWithOneRank) {
  const Outcome one = train({"--ranks", "1"});
  std::vector<Outcome> runs;
  for (auto& s : kStrategies)
    runs.push_back(train({"--ranks", "4", "--tp", "2", "--grad-accum", "2", "--strategy", s}));
  EXPECT_TRUE(runs[0] == runs[1]);
  EXPECT_TRUE(runs[2] == runs[3]);
  for (const Outcome& run : {runs[0], runs[2]}) expect_close_losses(run, one, 1e-4, "accumulated");
}

TEST(TensorParallelRun, Bf16StaysNearOneRankAndStrategiesAgreeInBits) {
  const Flags bf16 = {"--precision", "bf16"};
  const Outcome one = train(bf16 + Flags{"--ranks", "1"});
  const Outcome want = train(bf16 + kArrangements[2] + Flags{"--strategy", "no_shard"});
  expect_close_losses(want, one, 0.01, "bf16");
  for (auto& strategy : kStrategies)
    EXPECT_TRUE(train(bf16 + kArrangements[2] + Flags{"--strategy", strategy}) == want) << strategy;
}

TEST(TensorParallelRun, MuonStaysNearOneRankAndStrategiesAgreeInBits) {
  const Flags muon = {"--optimizer", "muon"};
  const Outcome one = train(muon + Flags{"--ranks", "1"});
  const Outcome want = train(muon + kArrangements[2] + Flags{"--strategy", "no_shard"});
  expect_close_losses(want, one, 1e-4, "muon");
  for (auto& strategy : kStrategies)
    EXPECT_TRUE(train(muon + kArrangements[2] + Flags{"--strategy", strategy}) == want) << strategy;
}

TEST(TensorParallelRun, MuonSumsGramMatricesOverTensorParallelRanks) {
  for (const char* form : {"standard", "gram"}) {
    const Flags muon = {"--optimizer", "muon", "--ns-form", form};
    const Outcome one = train(muon + Flags{"--ranks", "1"});
    const Flags distributed = muon + kArrangements[2] + Flags{"--muon-tensor", "distributed"};
    expect_close_losses(train(distributed), one, 1e-4, form);
    expect_close_losses(train(muon + Flags{"--ranks", "4", "--muon-allow-inexact"}), one, 1e-4, form);
  }
}

TEST(TensorParallelRun, WeightFilesDoNotShowTheArrangement) {
  const Outcome one = train({"--ranks", "1", "--steps", "0"});
  for (const Flags& arrangement : kArrangements)
    EXPECT_TRUE(train(arrangement + Flags{"--steps", "0"}) == one) << show(arrangement);
  const auto trained = scratch("trained");
  write_file(trained, train({"--ranks", "4", "--tp", "2", "--steps", "3"}).weights);
  const Flags again = {"--steps", "0", "--seed", "99", "--init-weights", trained.string()};
  for (const Flags& arrangement : kArrangements)
    EXPECT_TRUE(train(arrangement + again).weights == read_file(trained)) << show(arrangement);
}

TEST(TensorParallelRun, TalksOnceForEachHalfBlockAndSaysItsMesh) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  const Finished f = run_train_gpt(kModel + Flags{"--data", data.string(), "--metrics", metrics.string(),
                                                  "--steps", "2", "--ranks", "8", "--replicas", "2", "--tp",
                                                  "2", "--eval-every", "2", "--sample", "5"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("mesh replicate 2 x shard 2 x tp 2;"));
  EXPECT_THAT(f.out, HasSubstr("rank 7"));
  EXPECT_THAT(f.out, HasSubstr("blocks.[0-1].qkv.weight         [144, 48]")) << "whole shapes";
  // The model as one rank holds it: (256 + 24 + 256) * 48 + 2 * 12 * 48 * 48 + 5 * 48 elements of 4 bytes.
  EXPECT_THAT(f.out, HasSubstr("if replicated            0.31        0.31        0.62        1.24"));
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 2u);
  // Two sums forward and two backward in each of two blocks, one of the head; the outer sum of three units'
  // gradients; two to clip, over shard and tp; of the loss and of what ranks report.
  EXPECT_EQ(steps[0]["comm"]["all_reduce"]["calls"], 4 * 2 + 1 + 3 + 2 + 2);
  EXPECT_TRUE(steps[1].contains("eval_loss"));
}

TEST(TensorParallelRun, HeldOutLossIsOneRanks) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  std::vector<double> eval;
  for (const Flags& arrangement : {Flags{"--ranks", "1"}, kArrangements[2], kArrangements[3]}) {
    const Finished f = run_train_gpt(kModel + arrangement +
                                     Flags{"--data", data.string(), "--metrics", metrics.string(), "--steps",
                                           "3", "--eval-every", "3", "--quiet"});
    ASSERT_EQ(f.exit_code, 0) << f.err;
    eval.push_back(read_steps(metrics).back()["eval_loss"]);
    EXPECT_NEAR(eval.back(), eval.front(), 1e-5 * eval.front()) << show(arrangement);
  }
}

}  // namespace
}  // namespace sherd::test
