// Training with units' buffers in NCCL's symmetric windows, over the imitated NCCL, which checks its rules.

#include <fmt/format.h>

#include <sherd/fsdp/runtime.h>

#include "comm/nccl_runs.h"
#include "support/message_of.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

ToyResult train(ToyRun run, bool windows, std::string& said) {
  run.launcher = [&](int ranks, const std::function<void(RankContext&)>& body) {
    NcclOptions options = quick(std::chrono::seconds(20));
    options.windows = windows;
    const Outcome outcome = test::run(cpu_devices(ranks), options, {}, body);
    EXPECT_THAT(outcome.texts, testing::Each(""));
  };
  run.at_end = [&](ToyModel& model, RankContext& rank) {
    if (rank.world->rank() == 0) said = runtime_of(model).describe_buffers();
  };
  return run_toy(run);
}

struct Way {
  Strategy strategy;
  Outer outer = Outer::no_shard;
  int replicas = 1;
  LayoutPolicy layout = LayoutPolicy::ragged;
};

TEST(NcclWindows, HaveAllUnitsCollectivesAndTheSameBits) {
  for (const Way& way :
       {Way{Strategy::no_shard}, Way{Strategy::optim}, Way{Strategy::optim_grads},
        Way{Strategy::optim_grads_params}, Way{Strategy::optim_grads_params, Outer::optim, 2},
        Way{Strategy::optim_grads_params, Outer::no_shard, 1, LayoutPolicy::even_rows}}) {
    SCOPED_TRACE(
        fmt::format("{}, {} replicas, {}", name_of(way.strategy), way.replicas, name_of(way.layout)));
    ToyRun run{.ranks = 4, .replicas = way.replicas, .steps = 2};
    run.options.strategy = way.strategy;
    run.options.outer = way.outer;
    run.options.layout = way.layout;
    std::string said;
    const ToyResult want = train(run, false, said);
    EXPECT_EQ(said, "");
    const auto before = fake_nccl::log();
    EXPECT_EQ(before.in_windows, 0);

    const ToyResult got = train(run, true, said);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_THAT(said, HasSubstr("MiB of NCCL's, in symmetric windows of"));
    EXPECT_THAT(said, testing::Not(HasSubstr("none for")));
    const auto log = fake_nccl::log();
    EXPECT_EQ(log.blocks, 4);
    EXPECT_EQ(log.freed, 4);
    EXPECT_GE(log.windows, 8);
    EXPECT_EQ(log.windows_closed, log.windows);
    EXPECT_EQ(log.in_windows + log.outside, before.outside) << "as many collectives";
    // Every unit's reduction and, where weights are sharded, gather; outside are norms, losses, comparisons and
    // the optimizer's.
    const int kinds = way.strategy == Strategy::no_shard ? 1 : 2;
    EXPECT_GE(log.in_windows, run.steps * kinds * (run.blocks + 1));
  }
}

}  // namespace
}  // namespace sherd::test
