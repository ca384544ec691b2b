#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/train_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/comm/backend.h>
#include <sherd/train/settings/other_names.h>

#include "parse_flags.h"
#include "support/message_of.h"
#include "temporary_folder.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

using sherd::InvalidArgument;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Config, ModelsHaveSizesOfTheirOwn) {
  const std::vector<std::string> scratch = {"--model", "gpt2-124m", "--from-scratch", "--tokens", "t.bin"};
  const TrainConfig c = parse(scratch);
  EXPECT_EQ(c.dim, 768);
  EXPECT_EQ(c.layers, 12);
  EXPECT_EQ(parse({"--model", "qwen3-30b-a3b", "--from-scratch", "--steps", "0"}).expert_top_k, 8);
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = scratch;
    all.insert(all.end(), more.begin(), more.end());
    return refusal(all);
  };
  EXPECT_THAT(with({"--dim", "64", "--expert-top-k", "2"}),
              HasSubstr("--dim, --expert-top-k: --model gpt2-124m has sizes of its own"));
  EXPECT_THAT(with({"--seq", "2048"}), AllOf(HasSubstr("gpt2-124m"), HasSubstr("1024")));
  EXPECT_THAT(with({"--data", "x"}), HasSubstr("--data: --tokens t.bin is what is trained on"));
  EXPECT_THAT(with({"--sample", "5"}),
              HasSubstr("give --prompt TEXT, or its tokens with --prompt-tokens LIST"));
  EXPECT_THAT(with({"--sample", "5", "--prompt", "Once", "--prompt-tokens", "1"}),
              HasSubstr("--prompt Once: --prompt-tokens 1 is the start of the text"));
  EXPECT_EQ(
      parse({"--model", "gpt2-124m", "--from-scratch", "--steps", "0", "--sample", "5", "--prompt", "Once"})
          .prompt,
      "Once");
  EXPECT_THAT(refusal({"--model", "gpt2-124m", "--tokens", "t"}), HasSubstr("give --from-scratch"));
  EXPECT_THAT(refusal({"--model", "gpt2-124m", "--from-scratch"}), HasSubstr("give --tokens or --sft FILE"));
  EXPECT_THAT(refusal({"--model", "gpt5"}), AllOf(HasSubstr("no such folder"), HasSubstr("llama3-8b")));
  EXPECT_THAT(refusal({"--token-format", "u16"}), HasSubstr("token files are missing"));

  // A size is refused wherever it stands, for it would not be used.
  const TemporaryFolder folder;
  EXPECT_THAT(with({"--config", folder.write("c.txt", "layers: 3 dim: 64")}),
              HasSubstr("--dim, --layers: --model gpt2-124m has sizes of its own"));
  EXPECT_THAT(
      with({"--ranks", "5", "--batch", "5", "--tp", "5"}),
      HasSubstr("--tp 5: must, of --model gpt2-124m, divide its 12 heads and the 3072 hidden columns"));
  EXPECT_EQ(parse({"--model", "gpt2-124m", "--from-scratch", "--steps", "0", "--ranks", "4", "--tp", "4"}).tp,
            4);
  EXPECT_THAT(with({"--sample", "5", "--prompt-tokens", "1,50257"}),
              HasSubstr("--prompt-tokens: '1,50257': '50257' is not a token; give numbers below 50257"));
  EXPECT_THAT(with({"--prompt-tokens", "1", "--tokenizer", "t"}),
              HasSubstr("--prompt-tokens, --tokenizer: no text is generated; give --sample N"));
  EXPECT_EQ(parse({"--config", folder.write("d.txt", "prompt_tokens: '1'"), "--model", "gpt2-124m",
                   "--from-scratch", "--steps", "0"})
                .sample_bytes(),
            0);
}

TEST(Config, ListsOfTokenFilesAreReadWithTheFlags) {
  const auto said = [](const char* tokens, const char* valid) {
    return refusal({"--tokens", tokens, "--valid-tokens", valid});
  };
  EXPECT_THAT(
      said("a.bin:0.5,b.bin", "v.bin:1"),
      AllOf(HasSubstr("2 problems"), HasSubstr("--tokens 'a.bin:0.5,b.bin': 1 of 2 files have weights"),
            HasSubstr("--valid-tokens: 'v.bin' has a weight")));
  EXPECT_THAT(said("a.bin:0", "v.bin"), HasSubstr("the weight of 'a.bin' is 0"));
  EXPECT_THAT(said("a.bin:1000.000001,b.bin:1000", "v.bin"), HasSubstr("use fewer decimal places"));
}

TEST(Config, FirstWeightsMayBeEvaluated) {
  const std::vector<std::string> preset = {"--eval-only", "--model", "gpt2-124m", "--tokens", "t"};
  EXPECT_THAT(refusal(preset),
              AllOf(HasSubstr("a problem"), HasSubstr("no weights here; give --init-weights PATH")));
  std::vector<std::string> flags = preset;
  flags.insert(flags.end(), {"--init-weights", "w"});
  EXPECT_EQ(parse(flags).init_weights, "w");
  EXPECT_EQ(parse({"--eval-only", "--init-weights", "w"}).init_weights, "w");
  EXPECT_EQ(parse({"--eval-only", "--init-weights", "w", "--recompute", "offload"}).recompute,
            Recompute::none);
  EXPECT_THAT(refusal({"--eval-only", "--init-weights", "w", "--resume", "r"}),
              HasSubstr("give one of the two"));
}

TEST(Config, MuonFlagsAreCheckedTogether) {
  EXPECT_THAT(refusal({"--optimizer", "muon", "--ns-coefficients", "best"}), HasSubstr("polar_express"));
  EXPECT_THAT(refusal({"--muon-fraction", "0.5", "--muon-mode", "gram"}),
              HasSubstr("--muon-fraction 0.5: needs whole matrices"));
  EXPECT_THAT(refusal({"--ns-restart", "5", "--ns-form", "gram"}), HasSubstr("5 steps"));
  EXPECT_THAT(refusal({"--ns-restart", "3,2", "--ns-form", "gram"}), HasSubstr("increasing"));
  EXPECT_THAT(refusal({"--route", "fc"}), HasSubstr("REGEX=muon"));
  EXPECT_THAT(refusal({"--route", "(=muon"}), HasSubstr("--route"));
  EXPECT_THAT(refusal({"--route", "fc=sgd"}), HasSubstr("adamw, muon, normuon or soap"));
  EXPECT_EQ(parse({"--optimizer", "muon", "--ns-coefficients", "2,-1.5,0.5", "--ns-steps", "4", "--ns-form",
                   "gram", "--ns-restart", "2"})
                .ns_steps,
            4);
  EXPECT_EQ(parse({"--optimizer", "muon", "--ns-form", "by_shape", "--ns-restart", "2"}).ns_form,
            sherd::IterationForm::by_shape);
}

TEST(Config, MuonFlagsWithoutMuonAreRefusedAndInAFileTheyMayWait) {
  EXPECT_THAT(refusal({"--muon-mode", "owner", "--ns-steps", "4"}),
              AllOf(HasSubstr("--muon-mode"), HasSubstr("--ns-steps"), HasSubstr("--optimizer muon")));
  EXPECT_EQ(parse({"--optimizer", "muon", "--muon-mode", "owner"}).muon_mode, sherd::MatrixMode::owner);
  EXPECT_EQ(parse({"--route", "qkv=muon;tok=adamw", "--muon-mode", "owner"}).muon_mode,
            sherd::MatrixMode::owner);
  EXPECT_THAT(refusal({"--route", "qkv=adamw", "--muon-mode", "owner"}),
              HasSubstr("no parameter goes to Muon"));
  const TemporaryFolder folder;
  const std::string file = folder.write("run.txtpb", "optimizer: \"muon\" muon_mode: \"owner\"");
  EXPECT_EQ(parse({"--config", file, "--optimizer", "adamw"}).muon_mode, sherd::MatrixMode::owner);
}

TEST(Config, NorMuonTakesTheFlagsOfMuon) {
  EXPECT_EQ(parse({"--optimizer", "normuon", "--muon-mode", "owner"}).muon_mode, sherd::MatrixMode::owner);
  EXPECT_EQ(parse({"--route", "fc=normuon", "--ns-steps", "4"}).ns_steps, 4);
  EXPECT_THAT(refusal({"--optimizer", "normuon", "--muon-fraction", "0.5"}),
              HasSubstr("--muon-fraction 0.5: NorMuon normalizes all rows"));
  EXPECT_THAT(refusal({"--optimizer", "normuon", "--muon-scale", "spectral"}), HasSubstr("match_rms_adamw"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--route", "fc=normuon"}), HasSubstr("use one of them"));
}

TEST(Config, SoapFlagsWithoutSoapAreRefused) {
  EXPECT_THAT(refusal({"--soap-max-dim", "64"}),
              HasSubstr("no parameter goes to SOAP; give --optimizer soap"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--soap-beta", "0.9"}), HasSubstr("--soap-beta"));
  EXPECT_THAT(refusal({"--optimizer", "soap", "--muon-mode", "owner"}),
              HasSubstr("no parameter goes to Muon"));
  EXPECT_EQ(parse({"--optimizer", "soap", "--soap-max-dim", "64", "--explain-plan"}).soap_max_dim, 64);
  EXPECT_EQ(parse({"--route", "fc=soap", "--soap-max-dim", "64"}).soap_max_dim, 64);
}

TEST(Config, VersionNamesTheProgramAndWhatWasBuiltIn) {
  const CommandLine line = parse_line({"--version"});
  ASSERT_TRUE(line.help.has_value());
  EXPECT_THAT(
      *line.help,
      testing::MatchesRegex(
          "train_gpt [0-9.]+ \\(CUDA .*, NCCL .*, cuDNN attention .*, MPI .*; this processor: AVX.*\\)\n"));
}

TEST(Config, FlagsWinOverTheFileInAnyOrder) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "ranks: 4\nlr: 0.5 quiet: true\nstrategy: 'zero1'");
  for (const auto& flags : {std::vector<std::string>{"--lr", "0.25", "--config", file},
                            std::vector<std::string>{"--config=" + file, "--lr=0.25"}}) {
    const TrainConfig c = parse(flags);
    EXPECT_EQ(c.ranks, 4);
    EXPECT_EQ(c.lr, 0.25);
    EXPECT_EQ(c.strategy, sherd::Strategy::optim);
    EXPECT_TRUE(c.quiet);
    EXPECT_EQ(c.seq, 128);
  }
  // A default given as a flag still wins, and repairs what would be wrong in the file.
  EXPECT_EQ(parse({"--config", folder.write("d.txt", "ranks: 0"), "--ranks", "1"}).ranks, 1);
}

TEST(Config, LastOfEqualFlagsCounts) {
  EXPECT_EQ(parse({"--steps", "5", "--quiet", "--steps=6", "--quiet"}).steps, 6);
}

TEST(Config, MemoryLimitSuffixes) {
  EXPECT_EQ(parse({"--memory-limit", "1500000"}).memory_limit, 1500000);
  EXPECT_EQ(parse({"--memory-limit", "64K"}).memory_limit, 64 << 10);
  EXPECT_EQ(parse({"--memory-limit", "200m"}).memory_limit, 200 << 20);
  EXPECT_EQ(parse({"--memory-limit", "2G"}).memory_limit, int64_t{2} << 30);
  for (const char* wrong :
       {"", "G", "2T", "2GB", "-1", "-9223372036854775808K", "1.5G", "9223372036854775807K", "2 G"}) {
    EXPECT_THAT(refusal({"--memory-limit", wrong}), HasSubstr("must be a number of bytes")) << wrong;
  }
  const TemporaryFolder folder;
  EXPECT_EQ(parse({"--config", folder.write("c", "memory_limit: '3M'")}).memory_limit, 3 << 20);
  EXPECT_THAT(refusal({"--config", folder.write("d", "memory_limit: '3X'")}),
              HasSubstr(folder / "d: memory_limit \"3X\": must be a number of bytes"));
}

TEST(Config, WeightsOfAModelHaveAFineTuningRate) {
  const std::vector<std::string> weights = {"--model", "gpt2-124m", "--tokens", "t", "--init-weights", "w"};
  const std::vector<std::string> fresh = {"--model", "gpt2-124m", "--tokens", "t", "--from-scratch"};
  const auto with_rate = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--lr", "0.001"});
    return flags;
  };
  EXPECT_EQ(parse({}).lr, 3e-3);
  EXPECT_EQ(parse(fresh).lr, 3e-3);
  EXPECT_EQ(parse(weights).lr, 2e-5);
  EXPECT_EQ(parse(with_rate(weights)).lr, 1e-3);
}

TEST(Config, UnknownFlagsAreNamed) {
  EXPECT_THAT(refusal({"--rank", "3"}), HasSubstr("--rank: unknown flag; did you mean --ranks?"));
  EXPECT_THAT(refusal({"--learning-rate-of-it=1"}),
              HasSubstr("--learning-rate-of-it=1: unknown flag; --help-all"));
  EXPECT_THAT(refusal({"-r"}), HasSubstr("-r: unknown flag"));
  EXPECT_THAT(refusal({"--grad_accum", "3"}),
              HasSubstr("--grad_accum: unknown flag; did you mean --grad-accum?"));
  EXPECT_THAT(refusal({"--no-such=1", "--other"}), AllOf(HasSubstr("--no-such"), HasSubstr("--other")));
  EXPECT_THAT(refusal({"--steps"}), HasSubstr("--steps"));
  EXPECT_THAT(refusal({"--metrics", "--quiet"}), HasSubstr("--metrics"));
}

TEST(Config, FlagsOfOtherProgramsAreNamedWithTheOnesHere) {
  const std::pair<const char*, const char*> cases[] = {
      // Hugging Face Trainer
      {"--learning-rate", "--lr?"},
      {"--per_device_train_batch_size",
       "--batch? it counts sequences of a step over all ranks and microbatches"},
      {"--gradient-accumulation-steps", "--grad-accum?"},
      {"--num_train_epochs", "--steps? runs are measured in steps"},
      {"--max_steps", "--steps?"},
      {"--output_dir", "--save?"},
      {"--resume_from_checkpoint", "--resume?"},
      {"--gradient_checkpointing", "--recompute blocks?"},
      {"--max_grad_norm", "--grad-clip?"},
      {"--bf16", "--precision bf16?"},
      {"--model_name_or_path", "--model?"},
      // torchtitan
      {"--training.local_batch_size", "--batch?"},
      {"--training.seq_len", "--seq?"},
      {"--parallelism.tensor_parallel_degree", "--tp?"},
      // Megatron-LM
      {"--train-iters", "--steps?"},
      {"--micro-batch-size", "--grad-accum?"},
      {"--tensor-model-parallel-size", "--tp?"},
      {"--num-layers", "--layers?"},
      {"--save-interval", "--save-every?"},
      // nanoGPT
      {"--block_size", "--seq?"},
      {"--n_embd", "--dim?"},
      {"--max_iters", "--steps?"},
      {"--eval_interval", "--eval-every?"},
      // near misses
      {"--batchsize", "--batch?"},
      {"--epochs", "--steps?"},
      {"--warm", "--warmup?"}};
  for (const auto& [flag, here] : cases)
    EXPECT_THAT(refusal({flag, "1"}), HasSubstr(std::string(flag) + ": unknown flag; did you mean " + here));
  EXPECT_THAT(refusal({"--dropout", "0.1"}), HasSubstr("the models have no dropout; leave it out"));
  EXPECT_THAT(refusal({"--data"}), HasSubstr("--data: 1 required PATH missing"));
  EXPECT_THAT(refusal({"--data", "t", "text.txt"}), HasSubstr("such as --data PATH"));
  EXPECT_THAT(refusal({"text.txt"}),
              HasSubstr("'text.txt': expected a flag; values follow flags, such as --data PATH"));
}

// Names of other programs lead to settings that exist.
TEST(Config, EverySuggestionIsASetting) {
  TrainConfig any;
  std::vector<std::string_view> all;
  for (const sherd::FieldGroup& group : fields_of(any))
    for (const sherd::Field& field : group.fields) all.emplace_back(field.name);
  for (const std::string_view setting : sherd::settings_of_other_names())
    EXPECT_TRUE(std::ranges::count(all, setting) > 0) << setting;
}

TEST(Config, WhatIsNotAModelsFolderIsNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const auto of = [](const std::string& model) { return refusal({"--model", model, "--tokens", "t"}); };
  EXPECT_THAT(
      of("meta-llama/Llama-3.2-1B"),
      HasSubstr(
          "--model meta-llama/Llama-3.2-1B: no such folder, and nothing is downloaded; run `hf download "
          "meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B`, then give --model Llama-3.2-1B"));
  EXPECT_THAT(of("./nosuch"),
              HasSubstr("no such folder, and no published shape; these are known: gpt2-124m"));
  EXPECT_THAT(of("Llama3.2-1B"), HasSubstr("did you mean llama3.2-1b?"));
  const std::string config = folder.write("m/config.json", "{}");
  EXPECT_THAT(of(config), HasSubstr("a file; name the folder that it is in, --model " + (folder / "m")));
  folder.write("run/latest", "step_00000002");
  folder.write("run/step_00000002/manifest.binpb", "x");
  EXPECT_THAT(of(folder / "run"),
              HasSubstr("checkpoints of a run, not a model's folder; give --resume " + (folder / "run")));
  folder.write("step/manifest.binpb", "x");
  EXPECT_THAT(of(folder / "step"), HasSubstr("checkpoints of a run, not a model's folder"));
  folder.write("bare/model.safetensors", "x");
  EXPECT_THAT(of(folder / "bare"), HasSubstr("the folder has no config.json; name one with config.json and"));
  folder.write("lfs/config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 700\n");
  EXPECT_THAT(of(folder / "lfs"),
              HasSubstr("lfs/config.json': it is a git-lfs pointer, not the file itself; run `git "
                        "lfs pull` in its repository"));
  EXPECT_THAT(refusal({"--resume", (folder / "m")}),
              HasSubstr("m: a Hugging Face folder, not a checkpoint; give --model "));
  EXPECT_THAT(refusal({"--resume", folder / "m"}), Not(HasSubstr("its settings cannot be read")));
}

TEST(Config, ErrorsInTheFileNameLineAndColumn) {
  const TemporaryFolder folder;
  const std::string typo = folder.write("typo.txt", "ranks: 4\n  stepz: 10\nlr: 0.1\n");
  EXPECT_THAT(refusal({"--config", typo}), AllOf(HasSubstr(typo + ":2:"), HasSubstr("stepz")));
  const std::string type = folder.write("type.txt", "ranks: 4\nlr: 0.1\nsteps: \"many\"\n");
  EXPECT_THAT(refusal({"--config", type}), HasSubstr(type + ":3:8:"));
  const std::string twice = folder.write("twice.txt", "ranks: 4\nranks: 5\n");
  EXPECT_THAT(refusal({"--config", twice}), AllOf(HasSubstr(twice + ":2:"), HasSubstr("ranks")));
  const std::string cut = folder.write("cut.txt", "data: \"abc\n");
  EXPECT_THAT(refusal({"--config", cut, "--seq", "0"}), AllOf(HasSubstr(cut + ":1:"), HasSubstr("--seq 0")));
}

TEST(Config, AMissingFileIsAWrongFlag) {
  EXPECT_THAT(
      refusal({"--config", "/no/such/file", "--seq", "0"}),
      AllOf(HasSubstr("--config: cannot open '/no/such/file': No such file or directory; name a file of "
                      "options"),
            HasSubstr("--seq 0")));
  EXPECT_THAT(refusal({"--config", "/tmp"}), HasSubstr("--config: cannot read '/tmp': Is a directory"));
  EXPECT_THAT(refusal({"--config", ""}), HasSubstr("--config"));
}

TEST(ByteData, DefaultIsTheFolderOfStandardHeaders) {
  const std::filesystem::path folder = default_data_folder();
  EXPECT_TRUE(folder.is_absolute());
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "vector"));
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "algorithm"));
  EXPECT_EQ(folder, std::filesystem::canonical(folder));
}

}  // namespace
}  // namespace train_gpt
