// Whole runs of train_gpt with one GPU a rank and NCCL between them, both imitated: the same training as with
// the local backend. nccl_library.cpp ends a run that breaks NCCL's rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "programs/runs/outcome.h"

namespace sherd::test {
namespace {

Outcome train_nccl(const Flags& extra, int late = 0) {
  if (late > 0) ::setenv("SHERD_HOST_CUDA_LATE", std::to_string(late).c_str(), 1);
  Outcome outcome =
      train_quietly(Flags{"--steps", "4", "--dim", "32", "--layers", "2", "--heads", "2", "--seq", "16",
                          "--batch", "8", "--ranks", "4", "--seed", "7", "--device", "cuda"} +
                    extra);
  ::unsetenv("SHERD_HOST_CUDA_LATE");
  return outcome;
}

const Flags kNccl = {"--comm", "nccl", "--nccl-threads"}, kExact = kNccl + Flags{"--nccl-exact-order"};

class NcclTraining : public ::testing::TestWithParam<const char*> {};
class NcclTrainingInBits : public NcclTraining {};

std::vector<Flags> ways() {
  return {
      {"--strategy", "no_shard", "--grad-accum", "2"},
      {"--strategy", "zero1", "--layout", "whole_param"},
      {"--strategy", "zero2", "--replicas", "2", "--outer", "optim"},
      {"--strategy", "zero3", "--layout", "even_rows", "--precision", "bf16"},
      {"--strategy", "zero3", "--tp", "2", "--prefetch", "0"},
      {"--experts", "4", "--expert-parallel", "2"},
      {"--ranks", "3", "--batch", "9"},
  };
}

/// Of the ways, nightly all.
std::vector<Flags> some_ways() {
  const std::vector<Flags> all = ways();
  return nightly() ? all : std::vector<Flags>{all[1], all[3], all[5]};
}

TEST_P(NcclTrainingInBits, ExactOrderHasTheBitsOfLocal) {
  int order = 0;
  for (const Flags& way : some_ways()) {
    const Flags flags = Flags{"--optimizer", GetParam()} + way;
    const Outcome want = train_nccl(flags);
    ASSERT_EQ(want.losses.size(), 4u);
    EXPECT_TRUE(train_nccl(flags + kExact) == want) << show(flags);
    EXPECT_TRUE(train_nccl(flags + kExact, ++order) == want) << show(flags) << ", late streams " << order;
  }
}

TEST_P(NcclTraining, ItsOwnOrderAgreesToRounding) {
  for (const Flags& way : {Flags{}, Flags{"--replicas", "2"}}) {
    const Flags flags = Flags{"--optimizer", GetParam()} + way;
    expect_close_losses(train_nccl(flags + kNccl), train_nccl(flags), 1e-5, show(flags));
  }
}

TEST_P(NcclTrainingInBits, CallsAreComparedAndBuffersRegistered) {
  const Flags flags = Flags{"--optimizer", GetParam()} + kNccl;
  EXPECT_TRUE(train_nccl(flags + Flags{"--nccl-check-calls", "--nccl-register-buffers"}) ==
              train_nccl(flags));
}

TEST_P(NcclTrainingInBits, BuffersAreInSymmetricWindows) {
  for (const Flags& way : some_ways()) {
    const Flags flags = Flags{"--optimizer", GetParam()} + way + kNccl;
    EXPECT_TRUE(train_nccl(flags + Flags{"--nccl-windows"}) == train_nccl(flags)) << show(flags);
  }
}

TEST_P(NcclTraining, SavesAndResumesInTheSameBits) {
  const Flags flags = Flags{"--optimizer", GetParam()} + kNccl;
  const auto folder = scratch(std::string("nccl_saved_") + GetParam());
  const Outcome whole =
      train_nccl(flags + Flags{"--save", folder.string(), "--save-every", "2", "--async-save"});
  const Outcome rest = train_nccl(flags + Flags{"--resume", (folder / "step_00000002").string()}, 1);
  ASSERT_EQ(rest.losses.size(), 2u);
  EXPECT_EQ(rest.losses, (std::vector(whole.losses.begin() + 2, whole.losses.end())));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, NcclTraining, ::testing::Values("adamw", "muon"),
                         [](const auto& optimizer) { return std::string(optimizer.param); });
INSTANTIATE_TEST_SUITE_P(Optimizers, NcclTrainingInBits, ::testing::ValuesIn(optimizers_in_bits()),
                         [](const auto& optimizer) { return std::string(optimizer.param); });

/// Memory calls and launches wait as the driver's do (strict.h); 20 s count as for ever. A memory call while a collective runs is
/// told on stderr, and train_quietly() expects silence.
struct Strictly {
  Strictly() {
    ::setenv("SHERD_HOST_CUDA_STRICT", "20", 1);
    ::setenv("SHERD_HOST_CUDA_COUNT", "1", 1);
  }
  ~Strictly() {
    ::unsetenv("SHERD_HOST_CUDA_STRICT");
    ::unsetenv("SHERD_HOST_CUDA_COUNT");
  }
};

Outcome train_strictly(const Flags& flags, const std::string& launcher) {
  const Strictly strictly;
  return train_quietly(flags, launcher);
}

std::string processes(int count, int restarts = 0) {
  return std::string("'") + SHERD_TOOL + "' run --nproc " + std::to_string(count) +
         " --grace 1 --max-restarts " + std::to_string(restarts) + " --";
}

/// Whole trainings as threads of one process with --comm local, and as a process for each GPU with NCCL.
class StrictTraining : public ::testing::TestWithParam<int> {
 protected:
  static Flags run(const Flags& extra) {
    return Flags{"--steps",     "4",
                 "--dim",       "32",
                 "--layers",    "2",
                 "--heads",     "2",
                 "--seq",       "16",
                 "--batch",     "8",
                 "--ranks",     std::to_string(GetParam()),
                 "--seed",      "7",
                 "--device",    "cuda",
                 "--optimizer", "muon"} +
           extra;
  }
  static void expect_same_bits(const Flags& extra) {
    const Flags flags = run(extra);
    const Outcome want = train_quietly(flags);
    ASSERT_EQ(want.losses.size(), 4u) << show(flags);
    EXPECT_TRUE(train_strictly(flags, "") == want) << show(flags) << "threads";
    EXPECT_TRUE(
        train_strictly(flags + Flags{"--comm", "nccl", "--nccl-exact-order"}, processes(GetParam())) == want)
        << show(flags) << "processes";
  }
};

TEST_P(StrictTraining, EveryStrategyHasTheBitsOfBefore) {
  for (const char* strategy : {"zero0", "zero1", "zero2", "zero3"})
    expect_same_bits({"--strategy", strategy});
}

TEST_P(StrictTraining, MeshesAndSavesHaveTheBitsOfBefore) {
  const auto folder = scratch("strict_saved");
  for (const Flags& way :
       {Flags{"--replicas", "2"}, Flags{"--tp", "2", "--grad-accum", "2"}, Flags{"--precision", "bf16"},
        Flags{"--experts", "4", "--expert-parallel", "2"},
        Flags{"--save", folder.string(), "--save-every", "2", "--async-save", "--overwrite"}})
    expect_same_bits(way);
}

INSTANTIATE_TEST_SUITE_P(Gpus, StrictTraining,
                         ::testing::ValuesIn(nightly() ? std::vector{2, 4, 8} : std::vector{2, 4}));

TEST(Processes, AreStartedAgainFromTheNewestCheckpointWhenOneIsKilled) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Flags flags = {"--data",     data.string(), "--steps",        "8",    "--dim",        "32",
                       "--layers",   "2",           "--heads",        "2",    "--seq",        "16",
                       "--batch",    "8",           "--device",       "cuda", "--comm",       "nccl",
                       "--strategy", "zero3",       "--comm-timeout", "20",   "--save-every", "2",
                       "--quiet"};
  const auto trained = [&](const std::string& name, const std::string& program) {
    const auto folder = fresh("processes_" + name), weights = scratch("weights_" + name);
    const Finished f =
        run_train_gpt(flags + Flags{"--save", folder.string(), "--export-weights", weights.string()},
                      processes(4, 2) + program);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return std::pair(read_file(weights), f.err);
  };
  const auto [want, silent] = trained("whole", "");
  for (const char* rank : {"0", "3"}) {
    // The process that waits for a checkpoint kills the one that becomes train_gpt.
    const auto program = scratch("killed");
    write_file(program, "#!/bin/bash\nif [[ $SHERD_RUN_START == 1 && $RANK == " + std::string(rank) +
                            " ]]; then\n  (until ls -d '" +
                            (scratch("processes_killed") / "step_00000002").string() +
                            "'; do sleep 0.01; done; kill -KILL $$) >/dev/null 2>&1 &\nfi\nexec \"$@\"\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const auto [got, told] = trained("killed", " '" + program.string() + "'");
    EXPECT_EQ(got, want);
    EXPECT_THAT(told,
                testing::ContainsRegex("because rank " + std::string(rank) + " .*was killed by signal 9"));
    EXPECT_THAT(told, testing::HasSubstr("1 restart"));
  }
}

TEST(Processes, AStepWaitsForNothing) {
  const auto data = scratch("text"), metrics = fresh("waits");
  write_file(data, golden_text());
  const Finished f = run_train_gpt({"--data",      data.string(),
                                    "--steps",     "6",
                                    "--dim",       "32",
                                    "--layers",    "2",
                                    "--heads",     "2",
                                    "--seq",       "16",
                                    "--batch",     "8",
                                    "--device",    "cuda",
                                    "--comm",      "nccl",
                                    "--optimizer", "muon",
                                    "--metrics",   metrics.string(),
                                    "--quiet"},
                                   processes(4));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 6u);
  for (const auto& step : steps) EXPECT_EQ(step["host_syncs"], 0) << step["step"];
}

TEST(StrictDriver, ThreadsWithNcclBetweenThemWaitForEver) {
  ::setenv("SHERD_HOST_CUDA_STRICT", "3", 1);
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt(Flags{"--data", data.string(), "--steps", "4", "--dim", "32", "--layers", "2", "--heads",
                          "2", "--seq", "16", "--batch", "8", "--ranks", "4", "--device", "cuda"} +
                    kNccl);
  ::unsetenv("SHERD_HOST_CUDA_STRICT");
  EXPECT_NE(f.exit_code, 0);
  EXPECT_THAT(f.err,
              testing::ContainsRegex(
                  "imitated driver: .* on GPU [0-9] waits for nccl[A-Za-z]* on GPU [0-9], which has not"));
}

TEST(NcclRun, EveryModeOfMuonTrainsAlike) {
  const Flags muon = {"--optimizer", "muon", "--ns-form", "gram"};
  for (const char* mode : {"owner", "gather", "auto"}) {
    const Flags flags = muon + Flags{"--muon-mode", mode};
    EXPECT_TRUE(train_nccl(flags + kExact, 3) == train_nccl(flags)) << mode;
  }
}

TEST(NcclRun, SamplesAndEvaluates) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt(Flags{"--data",   data.string(), "--steps",      "4",  "--dim",    "32",  "--layers", "2",
                          "--heads",  "2",           "--seq",        "16", "--batch",  "8",   "--ranks",  "4",
                          "--sample", "10",          "--eval-every", "2",  "--device", "cuda"} +
                    kNccl);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, testing::HasSubstr("4 ranks (nccl)"));
}

}  // namespace
}  // namespace sherd::test
