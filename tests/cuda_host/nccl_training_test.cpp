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

const Flags kNccl = {"--comm", "nccl"}, kExact = {"--comm", "nccl", "--nccl-exact-order"};

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

TEST_P(NcclTrainingInBits, ExactOrderHasTheBitsOfLocal) {
  int order = 0;
  for (const Flags& way : ways()) {
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
  for (const Flags& way : ways()) {
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
