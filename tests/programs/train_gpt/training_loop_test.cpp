// Early ends of the training loop, triggered on one rank alone.
#include "train_gpt/run/training_loop.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>
#include <sherd/train/data/data.h>

#include "temporary_folder.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/run/windows.h"
#include "train_gpt/settings/run_options.h"

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
    std::set<bool> saved;
  };
  template <class Before>
  Ended train(Before before, const std::function<void(const Output&)>& after = {}) {
    return train(std::make_shared<const sherd::TokenWindows>(sherd::ByteData::load(config.data), config.seq),
                 before, after);
  }
  /// `after` is given what rank 0 has written.
  template <class Before>
  Ended train(const std::shared_ptr<const sherd::TokenWindows>& windows, Before before,
              const std::function<void(const Output&)>& after = {}) {
    Ended ended;
    std::mutex mutex;
    const sherd::LaunchOptions launch = {
        .device = {.kernels = sherd::parse_cpu_kernels(TEST_KERNELS), .threads = 1}};
    sherd::launch(static_cast<int>(config.ranks), launch, [&](sherd::RankContext& rank) {
      sherd::TraceOutput trace(rank, trace_options(config));
      Trainer trainer(rank, config, windows);
      const StopSources sources = before(trainer, rank.world->rank());
      std::string doing;
      std::optional<Output> out;
      if (rank.world->rank() == 0) out.emplace(CommandLine{.config = config}, sherd::ProcessMemory::now());
      const TrainingEnd end = train_gpt::train(trainer, config, sources, trace, out ? &*out : nullptr, doing);
      if (out && after) after(*out);
      const std::lock_guard lock(mutex);
      ended.wrong.insert(end.wrong);
      ended.stopped.insert(end.stopped);
      ended.steps.insert(trainer.step());
      ended.saved.insert(end.saved);
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

/// Changes a bit of memory of rank 3.
void corrupt(Trainer& trainer, int rank) {
  if (rank != 3) return;
  for (auto& [name, p] : trainer.saved_run().model.named_parameters()) {
    if (p.shard().numel() == 0) continue;
    sherd::ops::fill(trainer.world()->device().compute(), p.shard().flat(0, 1), 0.75);
    break;
  }
}

// Also between two comparisons: what is saved comes from every replica, and would be the same wrong bits on
// all of them after a resume.
TEST_F(TrainingLoop, CorruptWeightsOfOneRankEndTheRunBeforeTheyAreSaved) {
  config.save_every = 1;
  config.check_replicas = 4;
  for (const bool async : {false, true}) {
    config.async_save = async;
    config.resume.clear();
    config.save = folder / (async ? "async" : "sync");
    // Step 2 is sound; before step 3 a bit of memory changes on rank 3.
    config.stop_at = 2;
    const auto nothing = [](Trainer&, int) { return StopSources{}; };
    const Ended sound = train(nothing);
    EXPECT_EQ(sound.wrong, std::set<std::string>{""});
    EXPECT_EQ(sound.saved, std::set<bool>{true});
    ASSERT_TRUE(saved(2));
    config.stop_at = 0;
    config.resume = config.save;
    const Ended ended = train([](Trainer& trainer, int rank) {
      corrupt(trainer, rank);
      return StopSources{};
    });
    ASSERT_EQ(ended.wrong.size(), 1u) << "all ranks end alike";
    EXPECT_THAT(*ended.wrong.begin(),
                AllOf(HasSubstr("after step 3"), HasSubstr("ranks 1, 3 differ"), HasSubstr("was not saved")));
    EXPECT_EQ(ended.steps, std::set<int64_t>{3});
    EXPECT_EQ(ended.saved, std::set<bool>{false});
    EXPECT_TRUE(saved(2));
    for (int step = 3; step <= 6; ++step) EXPECT_FALSE(saved(step)) << step;
  }
}

TEST_F(TrainingLoop, ARunThatIsAskedToStopSavesNoCorruptWeightsEither) {
  config.check_replicas = 1000;
  config.steps = 100'000;
  sherd::StopRequest request({.signals = {SIGUSR2}});
  ::raise(SIGUSR2);
  const Ended ended = train([&](Trainer& trainer, int rank) {
    corrupt(trainer, rank);
    return StopSources{.signals = &request};
  });
  ASSERT_EQ(ended.wrong.size(), 1u);
  EXPECT_THAT(*ended.wrong.begin(), AllOf(HasSubstr("ranks 1, 3 differ"), HasSubstr("was not saved")));
  EXPECT_EQ(ended.saved, std::set<bool>{false});
  for (int step = 1; step <= 3; ++step) EXPECT_FALSE(saved(step)) << step;
}

/// A file that asks for a stop when it is read, once it is armed.
class StopsWhenRead : public sherd::FileBytes {
 public:
  const std::filesystem::path& path() const override { return path_; }
  int64_t size() const override { return 1000; }
  void read(int64_t, void* to, int64_t bytes) const override {
    std::memset(to, 'x', static_cast<size_t>(bytes));
    if (armed.exchange(false)) ::raise(SIGUSR2);
  }
  mutable std::atomic<bool> armed{false};

 private:
  const std::filesystem::path path_ = "held-out";
};

// After the last step no other one asks: the held-out data is read when that is done, and before it is saved.
TEST_F(TrainingLoop, ASignalBehindTheLastStepIsReceivedOnAllRanks) {
  config.eval_every = 1000;
  const auto held_out = std::make_shared<StopsWhenRead>();
  const auto validation = std::make_shared<const sherd::TokenStream>(
      "held-out", std::vector<sherd::TokenFile>{{.bytes = held_out, .begin = 0, .count = 1000}});
  const auto windows = std::make_shared<const sherd::TokenWindows>(
      std::vector<sherd::SharedTokens>{{sherd::ByteData::load(config.data)}}, validation,
      sherd::TokenWindowsOptions{.seq = config.seq});
  sherd::StopRequest request({.signals = {SIGUSR2}});
  windows->describe();  // which reads all of the file, and does so once
  held_out->armed = true;
  const Ended ended = train(
      windows, [&](Trainer&, int rank) { return StopSources{.signals = rank == 2 ? &request : nullptr}; });
  EXPECT_EQ(ended.wrong, std::set<std::string>{""});
  EXPECT_EQ(ended.stopped, std::set<std::string>{"SIGUSR2 came"});
  EXPECT_EQ(ended.steps, std::set<int64_t>{6});
  EXPECT_EQ(ended.saved, std::set<bool>{true});
  EXPECT_TRUE(saved(6));
}

TEST_F(TrainingLoop, TrainingEvaluationsAndSavesHaveTimesOfTheirOwn) {
  config.eval_every = 2;
  config.save_every = 3;
  double training = 0, evaluations = 0, saves = 0, all = 0;
  train([&](Trainer&, int) { return StopSources{}; },
        [&, begin = std::chrono::steady_clock::now()](const Output& out) {
          all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          EXPECT_EQ(out.held_out.points().size(), 3u);
          training = out.seconds;
          evaluations = out.evaluation_seconds;
          saves = out.saving_seconds;
        });
  EXPECT_GT(training, 0);
  EXPECT_GT(evaluations, 0);
  EXPECT_GT(saves, 0);
  EXPECT_LT(training + evaluations + saves, all);
}

TEST(EvaluationWindows, OfTextAreBoundedUnlessConfiguredOtherwise) {
  TrainConfig c;
  EXPECT_EQ(evaluation_windows(c), 256);
  c.valid_tokens = "v.bin";
  EXPECT_EQ(evaluation_windows(c), 0);
  c.tokens = "t.bin";
  c.valid_tokens = "";
  EXPECT_EQ(evaluation_windows(c), 0);
  c.eval_windows = 5;
  EXPECT_EQ(evaluation_windows(c), 5);
}

// A save that was not measured yet is taken to last a minute of an hour, and one and a half times that is
// kept for it.
TEST_F(TrainingLoop, ALimitOfTimeKeepsRoomForTheSave) {
  config.max_wall = "1h";
  const auto with_seconds_left = [&](int seconds) {
    config.save = folder / std::to_string(seconds);
    const auto start = std::chrono::steady_clock::now() - std::chrono::seconds(3600 - seconds);
    return train([&](Trainer&, int) { return StopSources{.start = start}; });
  };
  const Ended enough = with_seconds_left(3000);
  EXPECT_EQ(enough.stopped, std::set<std::string>{""});
  EXPECT_EQ(enough.steps, std::set<int64_t>{6});
  config.steps = 100'000;
  const Ended late = with_seconds_left(80);
  EXPECT_EQ(late.stopped, std::set<std::string>{"the limit of 1h0m0s is near"});
  ASSERT_EQ(late.steps.size(), 1u);
  EXPECT_LE(*late.steps.begin(), 3);
  EXPECT_EQ(late.saved, std::set<bool>{true});
}

// The signal reaches one rank's process; the others receive it by the step's own reduction.
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
