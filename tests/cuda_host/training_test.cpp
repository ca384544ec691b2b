// Whole runs of train_gpt on the GPU's side of the program, imitated on the host: the same training as on the
// CPU to rounding, the same bits under every strategy, and checkpoints that go both ways.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "example_files.h"
#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

const Flags kCpu = {}, kGpu = {"--device", "cuda"};

// All ranks on one GPU.
class EmulatedTraining : public ::testing::TestWithParam<const char*> {
 protected:
  EmulatedTraining() { ::setenv("SHERD_HOST_CUDA_DEVICES", "1", 1); }
  ~EmulatedTraining() override { ::unsetenv("SHERD_HOST_CUDA_DEVICES"); }
};

class EmulatedTrainingInBits : public EmulatedTraining {};

Flags small(const Flags& extra) {
  return Flags{"--steps", "10", "--dim",   "32", "--layers", "2", "--heads", "2",
               "--seq",   "16", "--batch", "8",  "--ranks",  "4", "--seed",  "7"} +
         extra;
}
Outcome train(const Flags& extra) { return train_quietly(small(extra)); }

TEST_P(EmulatedTraining, AgreesWithTheCpu) {
  const Flags optimizer = {"--optimizer", GetParam()};
  for (const Flags& ranks : {Flags{"--ranks", "1"}, Flags{}, Flags{"--tp", "2"}}) {
    const Outcome cpu = train(optimizer + ranks + kCpu), gpu = train(optimizer + ranks + kGpu);
    EXPECT_LT(cpu.losses.back(), cpu.losses.front() - 0.5);
    expect_close_losses(gpu, cpu, 1e-4, show(optimizer + ranks));
  }
}

TEST_P(EmulatedTrainingInBits, EveryStrategyHasTheSameBits) {
  const Flags optimizer = Flags{"--optimizer", GetParam()} + kGpu;
  const Outcome want = train(optimizer + Flags{"--strategy", "no_shard"});
  ASSERT_EQ(want.losses.size(), 10u);
  for (auto& strategy : kStrategies) {
    EXPECT_TRUE(train(optimizer + Flags{"--strategy", strategy}) == want) << strategy;
    EXPECT_TRUE(train(optimizer + Flags{"--strategy", strategy, "--replicas", "2"}) == want) << strategy;
  }
  for (const char* layout : {"even_rows", "whole_param"})
    EXPECT_TRUE(train(optimizer + Flags{"--layout", layout}) == want) << layout;
}

TEST_P(EmulatedTraining, HalfPrecisionLearnsInTheSameBitsEverywhere) {
  const Flags flags = Flags{"--optimizer", GetParam(), "--precision", "bf16"};
  const Outcome cpu = train(flags + kCpu), gpu = train(flags + kGpu);
  expect_close_losses(gpu, cpu, 2e-2, "bf16");  // activations have 8 bits of mantissa
  EXPECT_TRUE(train(flags + kGpu + Flags{"--strategy", "no_shard"}) == gpu);
  for (const Flags& forms :
       {Flags{"--master", "bf16", "--state-dtype", "bf16"}, Flags{"--master", "split"}}) {
    const Outcome narrow = train(flags + forms + kGpu);
    expect_close_losses(narrow, cpu, 3e-2, show(forms));
    EXPECT_TRUE(train(flags + forms + kGpu + Flags{"--strategy", "no_shard"}) == narrow) << show(forms);
  }
}

TEST_P(EmulatedTraining, AStepWaitsForNothing) {
  const Flags flags = small(Flags{"--optimizer", GetParam(), "--quiet"} + kGpu);
  const auto data = scratch("text"), metrics = scratch("waits"), folder = scratch("waits_saved");
  write_file(data, golden_text());
  std::filesystem::remove(metrics);
  const Finished f =
      run_train_gpt(flags + Flags{"--data", data.string(), "--metrics", metrics.string(), "--save",
                                  folder.string(), "--save-every", "3", "--async-save"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 10u);
  for (auto& step : steps) EXPECT_EQ(step["host_syncs"], 0) << step["step"];
}

bool same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b) {
  const std::string command =
      std::string("'") + SHERD_TOOL + "' ckpt diff '" + a.string() + "' '" + b.string() + "'";
  const auto out = scratch("diff");
  const bool same = std::system((command + " >'" + out.string() + "' 2>&1").c_str()) == 0;
  if (!same) std::printf("%s\n", read_file(out).c_str());
  return same;
}

// A run without a step of its own saves what it was given: the same bits, on any writing and reading rank.
TEST_P(EmulatedTraining, CheckpointsCrossBothWaysBitByBit) {
  const Flags optimizer = {"--optimizer", GetParam()};
  const auto data = scratch("text");
  write_file(data, golden_text());
  const auto run = [&](const Flags& flags) {
    const Finished f = run_train_gpt(small(optimizer + Flags{"--data", data.string(), "--quiet"} + flags));
    EXPECT_EQ(f.exit_code, 0) << show(flags) << f.err;
  };
  const std::vector<std::pair<Flags, Flags>> ways = {{kCpu, kGpu}, {kGpu, kCpu}};
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto& [from, to] = ways[i];
    const auto first = scratch("first" + std::to_string(i)), second = scratch("second" + std::to_string(i));
    run(from + Flags{"--stop-at", "5", "--save", first.string(), "--async-save"});
    run(to + Flags{"--stop-at", "5", "--resume", first.string(), "--save", second.string(), "--ranks", "2",
                   "--strategy", "zero1"});
    EXPECT_TRUE(same_checkpoint(first / "step_00000005", second / "step_00000005"));
    // Resuming there equals resuming here, to rounding.
    const Outcome there = train(optimizer + to + Flags{"--resume", first.string()});
    const Outcome here = train(optimizer + from + Flags{"--resume", first.string()});
    ASSERT_EQ(there.losses.size(), 5u);
    expect_close_losses(there, here, 1e-4, "after resuming");
  }
}

// The imitated streams run late, in an order of their own (late.h): a wait that is missing, or memory that is
// used again too early, would show as other bits.
TEST_P(EmulatedTrainingInBits, LateStreamsGiveTheSameBits) {
  const Flags common = Flags{"--optimizer", GetParam(), "--steps", "4"} + kGpu;
  const std::vector<Flags> ways = {
      {"--async-save", "--save-every", "2", "--save", scratch("late").string(), "--overwrite"},
      {"--replicas", "2", "--outer", "optim", "--strategy", "zero2", "--precision", "bf16"},
      {"--layout", "even_rows", "--tp", "2", "--grad-accum", "2"},
      {"--layout", "whole_param", "--strategy", "zero1", "--prefetch", "0"},
      {"--experts", "4", "--expert-parallel", "2"}};
  // Late runs of those in bf16 also have masters, and all have state, on the host: a different way to the same bits.
  const auto offload = [&](const Flags& way) {
    const bool masters = std::find(way.begin(), way.end(), "bf16") != way.end();
    return Flags{"--offload", masters ? "state,master" : "state", "--offload-window", "3K"};
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    const Outcome want = train(common + ways[i]);
    const std::string order = std::to_string(i + 1);
    ::setenv("SHERD_HOST_CUDA_LATE", order.c_str(), 1);
    const Outcome late = train(common + ways[i] + offload(ways[i]));
    ::unsetenv("SHERD_HOST_CUDA_LATE");
    EXPECT_TRUE(late == want) << show(ways[i]) << ", order " << order;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, EmulatedTraining, ::testing::Values("adamw", "muon"),
                         [](const auto& optimizer) { return std::string(optimizer.param); });
INSTANTIATE_TEST_SUITE_P(Optimizers, EmulatedTrainingInBits, ::testing::ValuesIn(optimizers_in_bits()),
                         [](const auto& optimizer) { return std::string(optimizer.param); });

TEST(EmulatedRun, ExpertsTrainAndWaitForTheirCounts) {
  const Flags experts = {"--experts", "4", "--expert-parallel", "2"};
  const Outcome cpu = train(experts + kCpu), gpu = train(experts + kGpu);
  expect_close_losses(gpu, cpu, 1e-3, "experts");  // a token may change its expert for a last bit
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Examples of 4 to 13 tokens below every folder's vocabulary, the first two of each a prompt (docs/fine-tuning.md).
std::string example_files() {
  std::vector<std::vector<int32_t>> examples;
  for (int32_t e = 0; e < 60; ++e) {
    examples.emplace_back();
    for (int32_t t = 0; t < 4 + e * 7 % 10; ++t) {
      const int32_t token = (e * e + 7 * t) % 190;
      examples.back().push_back(t < 2 ? -1 - token : token);
    }
  }
  const auto path = scratch("examples");
  write_examples(path, examples);
  return path.string();
}

Outcome train_model(const std::string& family, const Flags& extra) {
  const auto metrics = scratch("model_metrics");
  std::filesystem::remove(metrics);
  const Finished f = run_train_gpt(Flags{"--model", std::string(GOLDEN_FOLDER) + "/models/" + family, "--seq",
                                         "14", "--batch", "4", "--steps", "4", "--ranks", "2", "--lr", "3e-3",
                                         "--metrics", metrics.string(), "--threads", "1", "--quiet"} +
                                   extra);
  EXPECT_EQ(f.exit_code, 0) << family << f.err;
  Outcome run;
  for (auto& step : read_steps(metrics)) run.losses.push_back(step["loss"]);
  return run;
}

// Windows of 4 and 5 tokens, attention sinks, and several examples in a row.
TEST(EmulatedRun, WindowsSinksAndPackedExamplesTrainAsOnTheCpu) {
  const auto tokens = scratch("tokens");
  std::string bytes;
  for (int64_t i = 0; i < 2000; ++i) append(bytes, static_cast<uint16_t>((i * i + 7 * (i / 5)) % 190));
  write_file(tokens, bytes);
  const Flags text{"--tokens", tokens.string(), "--token-format", "u16"}, half{"--precision", "bf16"},
      packed{"--sft", example_files(), "--packing"};
  for (const std::string family : {"olmo3", "gemma3_text", "gpt_oss", "llama"})
    for (const Flags& data : {text, packed}) {
      const Outcome cpu = train_model(family, data + kCpu), gpu = train_model(family, data + kGpu);
      ASSERT_EQ(cpu.losses.size(), 4u);
      // A token of gpt_oss may change its expert for a last bit.
      expect_close_losses(gpu, cpu, family == "gpt_oss" ? 1e-3 : 1e-4, family + show(data));
      expect_close_losses(train_model(family, data + half + kGpu), cpu, 2e-2, family + show(data + half));
    }
  const Flags sample{"--model",       std::string(GOLDEN_FOLDER) + "/models/gpt_oss",
                     "--steps",       "0",
                     "--sample",      "12",
                     "--temperature", "0",
                     "--quiet",       "--prompt-tokens",
                     "5,6,7"};
  const Finished cpu = run_train_gpt(sample), gpu = run_train_gpt(sample + kGpu);
  EXPECT_EQ(gpu.exit_code, 0) << gpu.err;
  EXPECT_EQ(gpu.out, cpu.out);
}

TEST(EmulatedRun, TheKernelForCapability90TrainsAlike) {
  const Flags muon = Flags{"--optimizer", "muon",    "--ns-form", "gram",    "--muon-working",
                           "fp16",        "--ranks", "2",         "--steps", "3"} +
                     kGpu;
  const Flags hopper = {"--symmetric-products", "hopper"};
  ::setenv("SHERD_HOST_CUDA_CAPABILITY", "90", 1);
  const Outcome blocks = train(muon), own = train(muon + hopper),
                replicated = train(muon + hopper + Flags{"--strategy", "no_shard"});
  ::setenv("SHERD_HOST_CUDA_LATE", "1", 1);
  const Outcome late = train(muon + hopper);
  ::unsetenv("SHERD_HOST_CUDA_LATE");
  ::unsetenv("SHERD_HOST_CUDA_CAPABILITY");
  expect_close_losses(own, blocks, 1e-3, "sums in another order, rounded to fp16");
  EXPECT_TRUE(replicated == own);
  EXPECT_TRUE(late == own);
}

TEST(EmulatedRun, SamplesAndNamesItsDevice) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt(small(Flags{"--data", data.string(), "--sample", "20", "--eval-every", "5"} + kGpu));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("4 ranks (local), rank 0 on "));
  EXPECT_THAT(f.out, HasSubstr("(GPU 0)"));
  EXPECT_THAT(f.out, HasSubstr("generated text"));
}

TEST(EmulatedRun, WithoutAGpuThereIsOneLine) {
  ::setenv("SHERD_HOST_CUDA_DEVICES", "0", 1);
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f = run_train_gpt(small(Flags{"--data", data.string()} + kGpu));
  ::unsetenv("SHERD_HOST_CUDA_DEVICES");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(f.out, "");
  EXPECT_THAT(f.err, HasSubstr("no CUDA device"));
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
}

}  // namespace
}  // namespace sherd::test
