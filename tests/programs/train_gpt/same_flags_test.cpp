// Processes of one job that were started with different flags, or are different programs.
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/comm/core/require_equal.h>

#include "train_gpt/run/same_flags.h"
#include "train_gpt/run/same_program.h"

namespace train_gpt {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Messages on three ranks, of which rank 2's settings are changed.
std::vector<std::string> told(const std::function<void(TrainConfig&)>& change) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    sherd::launch(3, [&](sherd::RankContext& rank) {
      TrainConfig config;
      config.comm = sherd::BackendKind::mpi;
      config.ranks = 3;
      if (rank.world->rank() == 2) change(config);
      try {
        check_same_flags(rank, config);
      } catch (const sherd::RanksDiffer& e) {
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
        EXPECT_EQ(e.ranks(), std::vector{2});
      }
    });
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  return texts;
}

TEST(SameFlags, AreNamedWithTheRankOnEveryRank) {
  const auto texts =
      told([](TrainConfig& c) { c.seq = 64, c.lr = 0.5, c.metrics = "mine.jsonl", c.threads = 3; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("different flags"), HasSubstr("--seq of rank 2 (here "),
                                HasSubstr("--lr of rank 2"), Not(HasSubstr("--metrics")),
                                Not(HasSubstr("--threads")))));
}

TEST(SameFlags, ThatMakeRanksMeetAreCompared) {
  const auto texts = told([](TrainConfig& c) {
    c.check_replicas = 3, c.verify_step = 7, c.measure_peak = false,
    c.save_failure = sherd::SaveFailure::stop, c.allow_new_state = true;
    c.trace = "trace.json", c.timeline = "t.svg", c.trace_steps = 7, c.max_wall = "1h", c.temperature = 0.5,
    c.log_dir = "l";
  });
  EXPECT_THAT(texts, SizeIs(3));
  for (const char* flag :
       {"--check-replicas", "--verify-step", "--measure-peak", "--save-failure", "--allow-new-state",
        "--trace", "--timeline", "--trace-steps", "--max-wall", "--temperature"})
    EXPECT_THAT(texts, Each(HasSubstr(std::string(flag) + " of rank 2")));
  EXPECT_THAT(texts, Each(Not(HasSubstr("--log-dir"))));
}

// Metrics are rank 0's alone, but all ranks time products for them.
TEST(SameFlags, Rank0DecidesForAllWhatItAloneWrites) {
  for (const int has_it : {0, 2}) {
    std::mutex mutex;
    std::vector<bool> heard;
    sherd::launch(3, [&](sherd::RankContext& rank) {
      TrainConfig config;
      config.comm = sherd::BackendKind::mpi;
      const bool answer = as_rank_0_says(rank, config, rank.world->rank() == has_it);
      const std::lock_guard lock(mutex);
      heard.push_back(answer);
    });
    EXPECT_EQ(heard, std::vector<bool>(3, has_it == 0));
  }
}

/// What three ranks say of their programs, of which rank 2's is changed: the lines, or the error.
std::vector<std::vector<std::string>> programs(const std::function<void(ProgramFacts&)>& change) {
  std::mutex mutex;
  std::vector<std::vector<std::string>> all;
  sherd::launch(3, [&](sherd::RankContext& rank) {
    ProgramFacts facts{
        .version = "0.2.0", .build = "Release", .hardware = "AVX-512, bf16 products AMX", .level = 3};
    if (rank.world->rank() == 2) change(facts);
    std::vector<std::string> lines;
    try {
      lines = compare_programs(rank, facts);
    } catch (const sherd::RanksDiffer& e) {
      lines = {"refused", e.what()};
      EXPECT_EQ(e.ranks(), std::vector{2});
    }
    const std::lock_guard lock(mutex);
    all.push_back(lines);
  });
  return all;
}

TEST(SameProgram, EqualOnesSayNothing) {
  EXPECT_THAT(programs([](ProgramFacts&) {}), Each(SizeIs(0)));
}

TEST(SameProgram, AnotherVersionIsRefusedOnEveryRankWithBothAndTheirRanks) {
  const auto said = programs([](ProgramFacts& f) { f.version = "0.9.9", f.build = "Debug"; });
  ASSERT_THAT(said, SizeIs(3));
  for (const auto& lines : said) {
    ASSERT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines[1],
                AllOf(HasSubstr("0.2.0 on ranks 0, 1; 0.9.9 on rank 2"), HasSubstr("install one version")));
  }
}

TEST(SameProgram, OtherFeaturesAreNamedWithTheirRanksAndTheCommonSet) {
  const auto said = programs([](ProgramFacts& f) { f.hardware = "AVX2", f.level = 0; });
  ASSERT_THAT(said, SizeIs(3));
  for (const auto& lines : said) {
    ASSERT_THAT(lines, SizeIs(1));
    EXPECT_THAT(lines[0], AllOf(HasSubstr("AVX-512, bf16 products AMX on ranks 0, 1; AVX2 on rank 2"),
                                HasSubstr("SHERD_CPU_FEATURES=avx2 ")));
  }
  const auto bf16 =
      programs([](ProgramFacts& f) { f.hardware = "AVX-512, bf16 products AVX512-BF16", f.level = 2; });
  EXPECT_THAT(bf16.at(0).at(0), HasSubstr("SHERD_CPU_FEATURES=avx512_bf16 "));
  const auto gpus = programs([](ProgramFacts& f) { f.hardware = "NVIDIA H200", f.level = -1; });
  EXPECT_THAT(gpus.at(0).at(0), AllOf(HasSubstr("NVIDIA H200 on rank 2"), HasSubstr("hardware of one kind")));
}

TEST(SameProgram, AnotherBuildIsNamed) {
  const auto said = programs([](ProgramFacts& f) { f.build = std::string(400, 'x'); });
  ASSERT_THAT(said, SizeIs(3));
  for (const auto& lines : said) {
    ASSERT_THAT(lines, SizeIs(1));
    EXPECT_THAT(lines[0], AllOf(HasSubstr("Release on ranks 0, 1"), HasSubstr("x on rank 2")));
  }
}

TEST(SameProgram, FactsOfThisOneAreKnown) {
  sherd::launch(1, [](sherd::RankContext& rank) {
    TrainConfig config;
    const ProgramFacts facts = ProgramFacts::of(rank, config);
    EXPECT_THAT(facts.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
    EXPECT_THAT(facts.build, AllOf(HasSubstr("compiler"), HasSubstr("oneDNN"), HasSubstr("glibc")));
    EXPECT_THAT(facts.hardware, testing::StartsWith("AVX"));
    EXPECT_GE(facts.level, 0);
    EXPECT_LT(facts.build.size(), 256u) << "longer ones are cut";
    config.kernels = sherd::KernelSet::reference;
    EXPECT_EQ(ProgramFacts::of(rank, config).level, -1);
  });
}

TEST(SameFlags, MayNameFilesInDifferentPlacesButNotHaveThemHereAndThere) {
  EXPECT_THAT(told([](TrainConfig& c) { c.data = "/elsewhere"; }), SizeIs(0));
  const auto texts = told([](TrainConfig& c) { c.save = "/a/folder"; });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(HasSubstr("--save of rank 2 (here ")));
}

}  // namespace
}  // namespace train_gpt
