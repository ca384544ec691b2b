// Settings that are refused, by themselves and together, and decisions by the job around them.
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/comm/backend.h>

#include "parse_flags.h"
#include "support/message_of.h"
#include "temporary_folder.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {
namespace {

using sherd::InvalidArgument;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Config, RatesAreOfTheChoiceOfTheStrategyAlone) {
  EXPECT_THAT(refusal({"--hardware", "h100"}),
              HasSubstr("--hardware h100: nothing else is planned by rates; give --strategy auto"));
  EXPECT_THAT(refusal({"--strategy", "auto", "--hardware", "h1"}),
              HasSubstr("--hardware: hardware 'h1' is unknown"));
  EXPECT_EQ(parse({"--strategy", "auto"}).strategy, std::nullopt);
  EXPECT_THAT(parse({"--strategy", "auto"}).chosen,
              ElementsAre("strategy", "layout", "prefetch", "recompute"));
  EXPECT_THAT(parse({"--strategy", "auto", "--prefetch", "1", "--layout", "ragged"}).chosen,
              ElementsAre("strategy", "recompute"));
  EXPECT_THAT(parse({}).chosen, IsEmpty());
  EXPECT_EQ(refusal({"--strategy", "auto", "--layout", "whole_param", "--bucket-size", "1000"}),
            "nothing was thrown");
}

TEST(Config, RulesAmongFields) {
  EXPECT_THAT(refusal({"--ranks", "6", "--replicas", "4", "--batch", "12"}),
              HasSubstr("--replicas 4: must divide --ranks 6"));
  EXPECT_THAT(refusal({"--dim", "130", "--heads", "4"}),
              HasSubstr("--dim 130: must be a multiple of --heads 4, e.g. 132"));
  EXPECT_THAT(
      refusal({"--ranks", "3", "--grad-accum", "2"}),
      AllOf(HasSubstr("--batch 16"), HasSubstr("--ranks 3 x --grad-accum 2 = 6"), HasSubstr("e.g. 18")));
  EXPECT_EQ(parse({"--ranks", "4", "--replicas", "2", "--batch", "24", "--grad-accum", "3"}).batch, 24);
  EXPECT_THAT(refusal({"--ranks", "6", "--tp", "4", "--batch", "12"}),
              HasSubstr("--tp 4: must divide --ranks 6"));
  EXPECT_THAT(refusal({"--ranks", "4", "--replicas", "2", "--tp", "4"}),
              HasSubstr("--replicas 2 x --tp 4 = 8: must divide --ranks 4"));
  EXPECT_THAT(refusal({"--ranks", "3", "--tp", "3"}),
              HasSubstr("--tp 3: must divide --heads 4 and 4 x --dim 128"));
  EXPECT_THAT(refusal({"--ranks", "8", "--tp", "2", "--batch", "6"}),
              AllOf(HasSubstr("--ranks 8 / --tp 2 x --grad-accum 1 = 4"), HasSubstr("e.g. 8")));
  EXPECT_EQ(parse({"--ranks", "8", "--tp", "4", "--batch", "2"}).data_ranks(), 2);
}

TEST(Config, NothingIsSaidAboutWhatDependsOnARefusedWord) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> all = {
      {"--tf32", {"--device", "gpu", "--tf32"}},
      {"--comm", {"--device", "gpu", "--comm", "nccl"}},
      {"--min-lr", {"--lr-schedule", "x", "--min-lr", "1e-4"}},
      {"--bucket-size", {"--layout", "x", "--strategy", "optim", "--bucket-size", "5"}},
      {"--check-replicas", {"--strategy", "x", "--ranks", "4", "--batch", "4", "--check-replicas", "2"}}};
  for (const auto& [silent, flags] : all)
    EXPECT_THAT(refusal(flags), AllOf(HasSubstr("must be one of"), Not(HasSubstr(silent))));
}

TEST(Config, BucketsNeedALayoutAndAStrategyThatHaveThem) {
  using Flags = std::vector<std::string>;
  for (const Flags& none : {Flags{}, Flags{"--strategy", "zero1"}, Flags{"--layout", "whole_param"},
                            Flags{"--layout", "whole_param", "--strategy", "zero0"}}) {
    Flags flags = none;
    flags.insert(flags.end(), {"--bucket-size", "5"});
    EXPECT_THAT(refusal(flags), AllOf(HasSubstr("--bucket-size 5: no bucket spans blocks"),
                                      HasSubstr("--layout whole_param and --strategy optim or optim_grads")));
  }
  EXPECT_EQ(
      parse({"--layout", "whole_param:ping_pong", "--strategy", "zero2", "--bucket-size", "5"}).bucket_size,
      5);
  EXPECT_EQ(parse({"--layout", "whole_param", "--strategy", "zero0", "--outer", "optim", "--ranks", "2",
                   "--replicas", "2", "--bucket-size", "0"})
                .bucket_size,
            0);
}

TEST(Config, ExpertsFitTheRanks) {
  EXPECT_THAT(refusal({"--expert-parallel", "2", "--ranks", "2", "--expert-top-k", "1", "--moe-aux", "0"}),
              AllOf(HasSubstr("a problem"), HasSubstr("--expert-parallel 2, --expert-top-k 1, --moe-aux 0: "
                                                      "the model has no experts; give --experts")));
  EXPECT_EQ(parse({"--expert-top-k", "2", "--moe-aux", "0.01"}).experts, 0);
  EXPECT_THAT(refusal({"--experts", "1"}), HasSubstr("--expert-top-k 2: there are only --experts 1"));
  const std::string both = refusal({"--experts", "4", "--expert-parallel", "3", "--ranks", "4"});
  EXPECT_THAT(both, AllOf(HasSubstr("2 problems"), HasSubstr("--expert-parallel 3: must divide --experts 4"),
                          HasSubstr("--expert-parallel 3: must divide --ranks 4")));
  EXPECT_EQ(parse({"--experts", "4", "--tp", "2", "--ranks", "2", "--dim", "130", "--heads", "2"}).tp, 2);
  EXPECT_EQ(parse({"--experts", "1", "--expert-top-k", "1"}).experts, 1);
  const TrainConfig c =
      parse({"--experts", "6", "--expert-parallel", "2", "--ranks", "4", "--replicas", "4"});
  EXPECT_EQ(c.expert_parallel, 2);
}

TEST(Config, ExamplesAreTheOnlyDataAndPackedForModelsThatCan) {
  EXPECT_THAT(refusal({"--sft", "a", "--data", "b"}),
              HasSubstr("--data: --sft a is what is trained on; give one of the two"));
  EXPECT_THAT(refusal({"--sft", "a:0"}), HasSubstr("--sft 'a:0': the weight of 'a' is 0"));
  EXPECT_THAT(refusal({"--sft", "a", "--valid-tokens", "b", "--token-format", "u16"}),
              HasSubstr("--token-format u16: files of examples have one format"));
  EXPECT_THAT(refusal({"--sft", "a", "--packing", "--model", "gpt2-124m", "--from-scratch"}),
              HasSubstr("--packing: the learned positions of --model gpt2-124m"));
  EXPECT_TRUE(
      parse({"--sft", "a:0.3,b:0.7", "--packing", "--model", "qwen3-0.6b", "--from-scratch"}).packing);
}

TEST(Config, AdaptersNeedAModelAndARank) {
  EXPECT_THAT(
      refusal({"--lora-alpha", "4", "--export-adapter", "out"}),
      HasSubstr("--lora-alpha 4, --export-adapter out: the model has no adapters; give --lora-rank R"));
  EXPECT_THAT(refusal({"--freeze", "("}), HasSubstr("--freeze: '(': not a regular expression"));
  EXPECT_THAT(refusal({"--lora-rank", "4", "--lora-targets", "["}),
              HasSubstr("--lora-targets: '[': not a regular expression"));
  EXPECT_THAT(refusal({"--lora-rank", "4", "--model", "gpt2-124m", "--from-scratch", "--tokens", "t"}),
              HasSubstr("is of family gpt2, which has no adapters"));
}

TEST(Config, AllOffendersAreInOneMessage) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "layers: 0\nmemory_limit: 'much'\nheads: 3");
  const std::string message =
      refusal({"--ranks", "two", "--config", file, "--seq", "0", "--frobnicate", "3", "--lr", "-1", "--batch",
               "15", "--grad-accum", "2", "stray", "--warmup=-2"});
  EXPECT_THAT(message,
              AllOf(HasSubstr("9 problems"), HasSubstr("--ranks two: must be a whole number"),
                    HasSubstr("--seq 0"), HasSubstr("--frobnicate: unknown flag"), HasSubstr("--lr -1"),
                    Not(HasSubstr("--batch 15")), HasSubstr("'stray'"), HasSubstr("--warmup -2")));
  EXPECT_THAT(message, AllOf(HasSubstr(file + ": layers 0"), HasSubstr(file + ": memory_limit \"much\""),
                             HasSubstr("--dim 128: must be a multiple of --heads 3"), Not(HasSubstr("'3'"))));
}

TEST(Config, WhatOnlyGpusHaveNeedsThem) {
  EXPECT_EQ(parse({"--device", "cuda", "--threads", "3"}).device, sherd::DeviceKind::cuda);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl", "--tf32"}).comm, sherd::BackendKind::nccl);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl", "--bootstrap", "mpi"}).bootstrap,
            sherd::Bootstrap::mpi);
  EXPECT_EQ(parse({"--bootstrap", "none"}).bootstrap, sherd::Bootstrap::none);
  EXPECT_THAT(refusal({"--bootstrap", "mpi", "--nccl-check-calls", "--device", "cuda"}),
              AllOf(HasSubstr("--bootstrap mpi: ranks that are threads do not meet; give --comm nccl or mpi"),
                    HasSubstr("--nccl-check-calls: of NCCL alone; give --comm nccl")));
  EXPECT_EQ(parse({"--comm", "mpi"}).comm, sherd::BackendKind::mpi);
  EXPECT_EQ(parse({"--comm", "mpi", "--bootstrap", "mpi"}).bootstrap, sherd::Bootstrap::mpi)
      << "what it does anyway";
}

TEST(Config, WhatHasNoEffectUnderACommOrDeviceIsRefused) {
  EXPECT_THAT(refusal({"--comm", "mpi", "--bootstrap", "env"}),
              AllOf(HasSubstr("--bootstrap env: ranks of --comm mpi always meet over MPI"),
                    HasSubstr("the job's secret"), HasSubstr("leave it out")));
  EXPECT_EQ(parse({"--comm", "nccl", "--device", "cuda", "--bootstrap", "env"}).bootstrap,
            sherd::Bootstrap::env);
  EXPECT_EQ(parse({"--bootstrap", "env"}).comm, sherd::BackendKind::local)
      << "a job's process is refused by its variables";
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "comm: 'mpi'\nbootstrap: 'env'");
  EXPECT_THAT(refusal({"--config", file}), HasSubstr("--bootstrap env: ranks of --comm mpi"));
}

TEST(Config, RanksAreTheJobsProcessesUnlessGiven) {
  ASSERT_EQ(setenv("WORLD_SIZE", "8", 1), 0);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl"}).ranks, 8);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl", "--ranks", "1"}).ranks, 1);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl", "--ranks", "4"}).ranks, 4);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl", "--bootstrap", "none"}).ranks, 1);
  EXPECT_EQ(parse({"--comm", "mpi"}).ranks, 8);
  EXPECT_EQ(parse({"--device", "cuda"}).ranks, 1);
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
  EXPECT_EQ(parse({"--device", "cuda", "--comm", "nccl"}).ranks, 1);
}

TEST(Config, CommAutoIsWhatTheEnvironmentAsksFor) {
  const CommandLine alone = parse_line({"--comm", "auto", "--ranks", "2"});
  EXPECT_EQ(alone.config.comm, sherd::BackendKind::local);
  EXPECT_EQ(alone.comm_choice, "comm: local, because no launcher's variables are set");
  EXPECT_EQ(parse_line({}).comm_choice, "");
  EXPECT_EQ(parse_line({"--comm", "auto", "--bootstrap", "none"}).comm_choice,
            "comm: local, because --bootstrap none");
  ASSERT_EQ(setenv("WORLD_SIZE", "8", 1), 0);
  EXPECT_THAT(
      refusal({"--comm", "auto", "--ranks", "8"}),
      AllOf(HasSubstr("--comm auto: WORLD_SIZE is 8"), HasSubstr("mpirun -n 8"), HasSubstr("--device cuda")));
  EXPECT_THAT(message_of<InvalidArgument>([] { check_launch(parse({})); }),
              AllOf(HasSubstr("WORLD_SIZE is 8"), HasSubstr("--comm nccl or --comm mpi")));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                check_launch(parse({"--device", "cuda", "--comm", "nccl", "--ranks", "2"}));
              }),
              HasSubstr("--ranks 2, but WORLD_SIZE is 8"));
  ASSERT_EQ(setenv("OMPI_COMM_WORLD_SIZE", "8", 1), 0);
  if (sherd::backend_of(sherd::BackendKind::mpi).is_built()) {
    const CommandLine job = parse_line({"--comm", "auto"});
    EXPECT_EQ(job.config.comm, sherd::BackendKind::mpi);
    EXPECT_EQ(job.config.ranks, 8);
    EXPECT_EQ(job.comm_choice, "comm: mpi, because OMPI_COMM_WORLD_SIZE is 8");
    check_launch(job.config);
  }
  ASSERT_EQ(unsetenv("WORLD_SIZE") + unsetenv("OMPI_COMM_WORLD_SIZE"), 0);
}

}  // namespace
}  // namespace train_gpt
