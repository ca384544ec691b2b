// NCCL's communicators of a run, each of which takes memory of the GPU: how many are made, by kind of run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/optim/muon.h>

#include "comm/nccl_runs.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

constexpr int kRanks = 4;

/// Returns how many communicators of several ranks each rank makes.
int communicators_of(ToyRun run) {
  run.ranks = kRanks;
  run.steps = 2;
  run.launcher = [](int ranks, const std::function<void(RankContext&)>& body) {
    EXPECT_THAT(test::run(cpu_devices(ranks), quick(std::chrono::seconds(20)), {}, body).texts,
                testing::Each(""));
  };
  run_toy(run);
  const fake_nccl::Log log = fake_nccl::log();
  EXPECT_EQ(log.shared % kRanks, 0);
  return log.shared / kRanks;
}

ToyRun zero3(int replicas = 1, Outer outer = Outer::no_shard) {
  return {.replicas = replicas, .options = {.strategy = Strategy::optim_grads_params, .outer = outer}};
}

ToyRun muon(MatrixMode mode, ToyRun run = zero3()) {
  run.optimizer = Algorithm::muon;
  run.muon.whole.mode = mode;
  if (mode == MatrixMode::gram) {
    run.muon.orthogonalize.form = IterationForm::gram;
    run.hidden = run.width;  // no matrix has fewer rows than columns
  }
  return run;
}

// World, mesh dimension, check, gather, reduce; of a second dimension three more, and both together where states are cut by
// both.
TEST(NcclCommunicators, AreAsManyAsAdamWNeeds) {
  EXPECT_EQ(communicators_of(zero3()), 5);
  EXPECT_EQ(communicators_of(zero3(2)), 8);
  EXPECT_EQ(communicators_of(zero3(2, Outer::optim)), 9);
}

// Beside AdamW's: messages to the owners and results back; products; with replicas that share the work, their team.
TEST(NcclCommunicators, OfMuonAreThoseOfItsModes) {
  EXPECT_EQ(communicators_of(muon(MatrixMode::owner)), 7);
  EXPECT_EQ(communicators_of(muon(MatrixMode::gather)), 6);
  EXPECT_EQ(communicators_of(muon(MatrixMode::gram)), 8);
  EXPECT_EQ(communicators_of(muon(MatrixMode::owner, zero3(2))), 11);
}

}  // namespace
}  // namespace sherd::test
