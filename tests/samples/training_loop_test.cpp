// Where the training loop ends a run by itself, triggered on one rank alone.
#include "training_loop.h"

#include <csignal>
#include <filesystem>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops/ops.h>
#include <sherd/train/data.h>

#include "run_options.h"
#include "temporary_folder.h"

namespace train_gpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct TrainingLoop : testing::Test {
  TrainingLoop() {
    config.ranks = 4;
    config.replicas = 2;
    config.dim = 16;
    config.layers = 1;
    config.heads = 2;
    config.seq = 16;
    config.batch = 8;
    config.steps = 6;
    config.quiet = true;
    config.data = folder.write("data.txt", std::string(20'000, 'x') + "yz");
    config.save = folder / "saved";
  }

  /// Trains, after `before` on every rank; how it ended, which every rank knows alike, and its last step.
  struct Ended {
    std::set<std::string> wrong, stopped;
    std::set<int64_t> steps;
  };
  template <class Before>
  Ended train(Before before) {
    const auto windows =
        std::make_shared<const sherd::ByteWindows>(sherd::ByteData::load(config.data), config.seq);
    Ended ended;
    std::mutex mutex;
    const sherd::LaunchOptions launch = {
        .device = {.kernels = sherd::parse_cpu_kernels(TEST_KERNELS), .threads = 1}};
    sherd::launch(static_cast<int>(config.ranks), launch, [&](sherd::RankContext& rank) {
      sherd::TraceOutput trace(rank, trace_options(config));
      Trainer trainer(rank, config, windows);
      const StopSources sources = before(trainer, rank.world->rank());
      std::string doing;
      const TrainingEnd end = train_gpt::train(trainer, config, sources, trace, nullptr, doing);
      const std::lock_guard lock(mutex);
      ended.wrong.insert(end.wrong);
      ended.stopped.insert(end.stopped);
      ended.steps.insert(trainer.step());
    });
    return ended;
  }
  bool saved(int step) const {
    return std::filesystem::exists(std::filesystem::path(config.save) /
                                   ("step_0000000" + std::to_string(step)));
  }

  const TemporaryFolder folder;
  TrainConfig config;
};

TEST_F(TrainingLoop, CorruptWeightsOfOneRankEndTheRunBeforeTheyAreSaved) {
  config.save_every = 2;
  config.check_replicas = 2;
  // Step 2 is sound; before step 3 a bit of memory changes on rank 3.
  config.stop_at = 2;
  const auto nothing = [](Trainer&, int) { return StopSources{}; };
  EXPECT_EQ(train(nothing).wrong, std::set<std::string>{""});
  ASSERT_TRUE(saved(2));
  config.stop_at = 0;
  config.resume = config.save;
  const Ended ended = train([](Trainer& trainer, int rank) {
    if (rank == 3) {
      for (auto& [name, p] : trainer.saved_run().model.named_parameters()) {
        if (p.shard().numel() == 0) continue;
        sherd::ops::fill(trainer.world()->device().compute(), p.shard().flat(0, 1), 0.75);
        break;
      }
    }
    return StopSources{};
  });
  ASSERT_EQ(ended.wrong.size(), 1u) << "all ranks end alike";
  EXPECT_THAT(*ended.wrong.begin(),
              AllOf(HasSubstr("after step 4"), HasSubstr("ranks 1, 3 differ"), HasSubstr("was not saved")));
  EXPECT_EQ(ended.steps, std::set<int64_t>{4});
  EXPECT_TRUE(saved(2));
  EXPECT_FALSE(saved(4));
}

// The signal reaches one rank's process; the others learn of it by the step's own reduction.
TEST_F(TrainingLoop, AllRanksStopAfterOneStepThoughOneAloneWasSignalled) {
  config.steps = 100'000;
  sherd::StopRequest request({.signals = {SIGUSR2}});
  const Ended ended = train([&](Trainer&, int rank) {
    if (rank == 0) ::raise(SIGUSR2);
    return StopSources{.signals = rank == 2 ? &request : nullptr};
  });
  EXPECT_EQ(ended.wrong, std::set<std::string>{""});
  EXPECT_EQ(ended.stopped, std::set<std::string>{"SIGUSR2 came"});
  ASSERT_EQ(ended.steps.size(), 1u);
  EXPECT_LE(*ended.steps.begin(), 3);
  EXPECT_TRUE(saved(static_cast<int>(*ended.steps.begin())));
}

}  // namespace
}  // namespace train_gpt
