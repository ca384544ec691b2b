// Settings that a run inherits from the checkpoint it resumes.
#include "train_gpt/rules/inheritance.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/format/manifest.h>

#include "parse_flags.h"
#include "train_gpt/model/model_source.h"
#include "train_gpt/model/saved_model.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A checkpoint of a run of 4 ranks with many settings that differ from the defaults; no tensors.
class Inheritance : public ::testing::Test {
 protected:
  void write(const std::string& config) {
    sherd::Manifest manifest;
    manifest.sequence = 1;
    manifest.training = {.step = 10, .seed = 7, .info = {{"config", config}}};
    folder_.write("step_00000010/manifest.binpb", encode_manifest(manifest));
  }
  void SetUp() override {
    saved_.ranks = 4;
    saved_.replicas = 2;
    saved_.outer = sherd::Outer::optim;
    saved_.dim = 48;
    saved_.seq = 24;
    saved_.batch = 12;
    saved_.optimizer = OptimizerWord::muon;
    saved_.muon_momentum = 0.9;
    saved_.lr = 0.01;
    saved_.lr_schedule = sherd::RateDecay::cosine;
    saved_.min_lr = 0.002;
    saved_.steps = 50;
    saved_.stop_at = 10;
    saved_.eval_every = 5;
    saved_.seed = 3;
    saved_.threads = 1;
    saved_.memory_limit = 1 << 30;
    saved_.save = "run";
    saved_.save_every = 5;
    saved_.metrics = "m.jsonl";
    saved_.log_dir = "events";
    saved_.sample = 10;
    saved_.quiet = true;
    saved_.init_weights = "w.safetensors";
    write(config_text(saved_));
  }
  std::string path() const { return folder_.path().string(); }

  TemporaryFolder folder_;
  TrainConfig saved_;
};

TEST_F(Inheritance, TheRunComesAlongAndTheMachineAndOutputsDoNot) {
  const CommandLine line = parse_line({"--resume", path()});
  TrainConfig want;
  want.resume = path();
  want.dim = 48;
  want.seq = 24;
  want.batch = 12;
  want.optimizer = OptimizerWord::muon;
  want.muon_momentum = 0.9;
  want.lr = 0.01;
  want.lr_schedule = sherd::RateDecay::cosine;
  want.min_lr = 0.002;
  want.steps = 50;
  want.eval_every = 5;
  want.seed = 7;  // of the checkpoint, whatever the flag said
  EXPECT_EQ(line.config, want) << config_text(line.config);
  EXPECT_THAT(line.inherited,
              ElementsAre("--seq 24", "--batch 12", "--dim 48", "--seed 7", "--optimizer muon", "--steps 50",
                          "--lr 0.01", "--lr-schedule cosine", "--min-lr 0.002", "--muon-momentum 0.9",
                          "--eval-every 5"));
}

TEST_F(Inheritance, FlagsAndTheFileWin) {
  const std::string file = folder_.write("c.txt", "lr: 0.5 steps: 60 min_lr: 0.25");
  const CommandLine line =
      parse_line({"--resume", path(), "--config", file, "--steps", "70", "--lr-schedule", "linear"});
  EXPECT_EQ(line.config.lr, 0.5);
  EXPECT_EQ(line.config.steps, 70);
  EXPECT_EQ(line.config.min_lr, 0.25);
  EXPECT_EQ(line.config.lr_schedule, sherd::RateDecay::linear);
  EXPECT_EQ(line.config.dim, 48);
  EXPECT_THAT(line.inherited, Not(Contains(HasSubstr("--lr"))));
  // A default that is given is a flag like any other.
  EXPECT_EQ(parse_line({"--resume", path(), "--optimizer", "adamw"}).config.optimizer, OptimizerWord::adamw);
  // The checkpoint may also be named in the file.
  EXPECT_EQ(parse_line({"--config", folder_.write("d.txt", "resume: '" + path() + "'")}).config.dim, 48);
}

// SECURITY.md lists them: what a checkpoint can make a run open.
TEST_F(Inheritance, NoOutputIsTakenOver) {
  const std::vector<std::string_view> names = inherited_settings(false);
  for (const char* const path :
       {"save", "metrics", "log_dir", "loss_svg", "trace", "timeline", "export_weights", "export_hf",
        "export_adapter", "flight_recorder", "tokenizer", "init_weights", "resume"})
    EXPECT_THAT(names, Not(Contains(path)));
  for (const char* const path : {"data", "tokens", "sft", "valid_tokens", "eval_data", "model"})
    EXPECT_THAT(names, Contains(path));
}

// A stranger's checkpoint decides these.
TEST_F(Inheritance, RecordedPatternsAreBoundedAndTheErrorNamesTheCheckpoint) {
  const std::string deep(20000, '('), from = " was saved with the checkpoint of --resume " + path();
  saved_.freeze = saved_.lora_targets = deep;
  saved_.route = deep + "=muon";
  write(config_text(saved_));
  const std::string text = refusal({"--resume", path()});
  for (const std::string flag : {"--freeze", "--lora-targets", "--route"})
    EXPECT_THAT(text, HasSubstr("; write a shorter one, such as [0-9]+ for all layers (" + flag + from))
        << flag;
  EXPECT_THAT(text, AllOf(HasSubstr("(((...': not a regular expression: 20000 bytes are more than 1000"),
                          HasSubstr("; give the flag to replace it)")));
  EXPECT_LT(text.size(), 4000u) << text;
  EXPECT_THAT(refusal({"--resume", path(), "--freeze", "[", "--lora-targets", "a", "--route", "tok=adamw"}),
              AllOf(HasSubstr("--freeze: '['"), Not(HasSubstr(from))));

  saved_.freeze = saved_.lora_targets = "a";
  saved_.route.clear();
  for (int i = 0; i < 1001; ++i) saved_.route += "a=muon;";
  write(config_text(saved_));
  EXPECT_THAT(refusal({"--resume", path()}),
              AllOf(HasSubstr("--route: 1001 rules are more than 1000"), HasSubstr("(--route" + from)));
}

TEST_F(Inheritance, WeightsAloneBringWhatTheModelIsMadeOf) {
  const CommandLine line = parse_line({"--resume", path(), "--resume-parts", "model"});
  TrainConfig want;
  want.resume = path();
  want.resume_parts = sherd::ResumeParts::model;
  want.dim = 48;
  want.seq = 24;
  EXPECT_EQ(line.config, want) << config_text(line.config);
  EXPECT_THAT(line.inherited, ElementsAre("--seq 24", "--dim 48"));
}

// Inheritance from a run that trained a published shape on token files.
class ModelInheritance : public Inheritance {
 protected:
  void SetUp() override {
    saved_.model = "qwen3-30b-a3b";
    saved_.from_scratch = true;
    saved_.tokens = "t.bin";
    saved_.valid_tokens = "v.bin";
    saved_.token_format = sherd::TokenFormat::u32;
    saved_.order = sherd::TokenOrder::sequential;
    saved_.moe_aux = 0.05;
    saved_.layout = LayoutWord::whole_param;
    saved_.strategy = sherd::Strategy::optim;
    saved_.bucket_size = 5;
    write(config_text(saved_));
  }
};

TEST_F(ModelInheritance, TheWeightOfTheBalancingLossIsTheRuns) {
  const CommandLine line = parse_line({"--resume", path()});
  EXPECT_EQ(line.config.moe_aux, 0.05);
  EXPECT_THAT(line.inherited, Contains("--moe-aux 0.05"));
  EXPECT_EQ(
      parse_line({"--resume", path(), "--config", folder_.write("c.txt", "moe_aux: 0.5")}).config.moe_aux,
      0.5);
  write(R"({"model": "qwen3-30b-a3b", "from_scratch": true, "tokens": "t"})");
  EXPECT_EQ(parse_line({"--resume", path()}).config.moe_aux,
            parse_line({"--model", saved_.model, "--from-scratch", "--steps", "0"}).config.moe_aux)
      << "the model's own where that run said nothing";
}

TEST_F(ModelInheritance, WeightsAloneBringTheModelAndAnOptimizerAloneNoWeights) {
  const TrainConfig weights =
      parse_line({"--resume", path(), "--resume-parts", "model", "--steps", "0"}).config;
  EXPECT_EQ(weights.model, saved_.model);
  EXPECT_EQ(weights.dim, 2048);
  EXPECT_EQ(weights.tokens, "");
  EXPECT_TRUE(weights.resumes_weights());
  EXPECT_THAT(refusal({"--resume", path(), "--resume-parts", "optimizer"}),
              HasSubstr("has no weights here; give --from-scratch, or --init-weights PATH"));
  EXPECT_FALSE(parse_line({"--resume", path(), "--resume-parts", "optimizer", "--from-scratch"})
                   .config.resumes_weights());
}

TEST_F(ModelInheritance, FlagsWinOverWhatContradictsThem) {
  EXPECT_EQ(parse_line({"--resume", path(), "--strategy", "zero3"}).config.strategy,
            sherd::Strategy::optim_grads_params);
  EXPECT_EQ(parse_line({"--resume", path()}).config.bucket_size, 5);
  EXPECT_THAT(refusal({"--resume", path(), "--strategy", "zero3", "--bucket-size", "7"}),
              HasSubstr("--bucket-size 7: no bucket spans blocks"));
  saved_.model = "";
  saved_.from_scratch = false;
  saved_.moe_aux = TrainConfig().moe_aux;
  write(config_text(saved_));
  const TrainConfig c = parse_line({"--resume", path(), "--data", "text"}).config;
  EXPECT_EQ(c.data, "text");
  EXPECT_EQ(c.tokens + c.valid_tokens, "");
  EXPECT_EQ(c.token_format, sherd::TokenFormat::automatic);
  EXPECT_EQ(c.order, std::nullopt);
}

TEST_F(ModelInheritance, ExamplesAndTokensReplaceEachOther) {
  EXPECT_EQ(parse_line({"--resume", path()}).config.tokens, "t.bin");
  const TrainConfig examples =
      parse_line({"--resume", path(), "--sft", "chats", "--token-format", "auto", "--packing"}).config;
  EXPECT_EQ(examples.tokens, "");
  EXPECT_EQ(examples.sft, "chats");
  saved_.tokens = "";
  saved_.sft = "chats";
  saved_.packing = true;
  write(config_text(saved_));
  EXPECT_TRUE(parse_line({"--resume", path(), "--token-format", "auto"}).config.packing);
  const TrainConfig tokens = parse_line({"--resume", path(), "--tokens", "t.bin"}).config;
  EXPECT_EQ(tokens.sft, "");
  EXPECT_FALSE(tokens.packing);
}

TEST_F(Inheritance, OldCheckpointsLeaveNewSettingsAtTheirDefaults) {
  write(R"({"dim": 48, "heads": 2, "lr": 0.02, "unheard_of": 1})");
  const TrainConfig c = parse_line({"--resume", path()}).config;
  EXPECT_EQ(c.dim, 48);
  EXPECT_EQ(c.heads, 2);
  EXPECT_EQ(c.min_lr, std::nullopt);
  EXPECT_EQ(c.adam_beta2, TrainConfig().adam_beta2);
  write("");
  EXPECT_EQ(parse_line({"--resume", path()}).config.dim, TrainConfig().dim);
}

TEST_F(Inheritance, RecordedSettingsThatAreNotJsonAreAnErrorWithTheCheckpoint) {
  write("dim: 48");
  EXPECT_THAT(refusal({"--resume", path()}),
              AllOf(HasSubstr("step_00000010, its settings': it is not valid JSON"),
                    HasSubstr("resume another checkpoint")));
}

TEST_F(Inheritance, RulesHoldForWhatComesAlong) {
  EXPECT_THAT(refusal({"--resume", path(), "--ranks", "5"}),
              HasSubstr("--batch 12: must be a multiple of --ranks 5"));
  EXPECT_THAT(refusal({"--resume", path(), "--lr", "0.001"}),
              HasSubstr("--min-lr 0.002: must not be greater than --lr 0.001"));
  write(R"({"lr": -1, "dim": "wide"})");
  EXPECT_THAT(refusal({"--resume", path()}), AllOf(HasSubstr("2 problems"), HasSubstr("step_00000010"),
                                                   HasSubstr("--lr -1"), HasSubstr("--dim \"wide\"")));
  EXPECT_EQ(parse_line({"--resume", path(), "--lr", "1", "--dim", "64"}).config.lr, 1);
}

TEST_F(Inheritance, ACheckpointThatIsNotThereIsNamedBesideOtherProblems) {
  EXPECT_THAT(parse_line({"--resume", "/nowhere"}).inherited, IsEmpty());
  EXPECT_THAT(refusal({"--resume", "/nowhere", "--ranks", "3"}),
              AllOf(HasSubstr("--batch 16"), HasSubstr("--resume /nowhere: its settings cannot be read")));
}

TEST(Schedules, EndAtTheRequestedStep) {
  const auto rate = [](const std::vector<std::string>& flags, int64_t step) {
    return learning_rate(schedule_of(parse_line(flags).config), step);
  };
  EXPECT_DOUBLE_EQ(rate({"--lr", "0.5", "--lr-schedule", "cosine"}, 100), 0.05);
  EXPECT_DOUBLE_EQ(rate({"--lr", "0.5", "--lr-schedule", "cosine", "--min-lr", "0"}, 100), 0);
  EXPECT_DOUBLE_EQ(rate({"--lr", "0.5", "--lr-schedule", "linear", "--min-lr", "0.1"}, 50), 0.3);
  const std::vector<std::string> wsd = {"--lr",          "0.5", "--lr-schedule", "wsd",
                                        "--decay-steps", "20",  "--min-lr",      "0.25"};
  EXPECT_DOUBLE_EQ(rate(wsd, 80), 0.5);
  EXPECT_DOUBLE_EQ(rate(wsd, 90), 0.375);
  EXPECT_DOUBLE_EQ(rate(wsd, 100), 0.25);
}

TEST(Schedules, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refusal({"--lr-schedule", "cosine", "--decay-steps", "5"}),
              HasSubstr("--decay-steps: other schedules fall over all of --steps; give --lr-schedule wsd"));
  EXPECT_THAT(refusal({"--lr-schedule", "cosine", "--min-lr", "1"}),
              HasSubstr("--min-lr 1: must not be greater"));
  EXPECT_THAT(refusal({"--lr-schedule", "wsd"}), HasSubstr("give --decay-steps N"));
  EXPECT_THAT(refusal({"--lr-schedule", "wsd", "--decay-steps", "95", "--warmup", "10"}),
              HasSubstr("--decay-steps 95: must fit into --steps 100 behind --warmup 10"));
}

TEST(WithoutTraining, WhatTrainsIsRefused) {
  EXPECT_THAT(refusal({"--eval-only"}), HasSubstr("--eval-only: of which model? Give --resume PATH"));
  EXPECT_THAT(refusal({"--sample-only"}), HasSubstr("--sample-only: of which model? Give --resume PATH"));
  EXPECT_THAT(
      refusal({"--eval-only", "--resume", "x", "--steps", "5", "--save", "y", "--lr", "1"}),
      HasSubstr(
          "--steps, --lr, --save: --eval-only trains nothing and saves nothing; leave such options out"));
  EXPECT_THAT(refusal({"--prompt", "int", "--top-p", "0.5"}),
              HasSubstr("--prompt, --top-p: no text is generated"));
  EXPECT_EQ(parse_line({"--sample", "5", "--prompt", ""}).config.start_of_text(), "\n");
}

TEST(WithoutTraining, TextMeasuresNothing) {
  EXPECT_THAT(refusal({"--sample-only", "--resume", "x", "--metrics", "m", "--log-dir", "d"}),
              HasSubstr("--metrics, --log-dir: --sample-only trains nothing"));
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "metrics: 'm.jsonl' log_dir: 'events'");
  const TrainConfig text = parse_line({"--sample-only", "--resume", "x", "--config", file}).config;
  EXPECT_EQ(text.metrics + text.log_dir, "");
  EXPECT_EQ(parse_line({"--eval-only", "--resume", "x", "--config", file}).config.metrics, "m.jsonl");
}

TEST(WithoutTraining, TheBatchNeedsNoEqualSharesOfTheRanks) {
  for (const char* only : {"--eval-only", "--sample-only"})
    EXPECT_EQ(parse_line({only, "--resume", "x", "--ranks", "3"}).config.ranks, 3) << only;
  EXPECT_EQ(parse_line({"--steps", "0", "--ranks", "3"}).config.ranks, 3);
  EXPECT_THAT(refusal({"--ranks", "3"}), HasSubstr("--batch 16: must be a multiple of --ranks 3"));
}

TEST(WithoutTraining, WindowsToEvaluateAreRefusedWhereNothingIsEvaluated) {
  EXPECT_THAT(refusal({"--eval-windows", "8"}),
              HasSubstr("--eval-windows: nothing is evaluated; give --eval-every"));
  EXPECT_THAT(refusal({"--sample-only", "--resume", "x", "--eval-windows", "8"}),
              HasSubstr("nothing is evaluated"));
  EXPECT_EQ(parse_line({"--eval-only", "--resume", "x", "--eval-windows", "8"}).config.eval_windows, 8);
  EXPECT_EQ(parse_line({"--eval-every", "2", "--eval-windows", "0"}).config.eval_windows, 0);
}

TEST(WithoutTraining, AConfigFileMayNameUnusedSettings) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "save: 'run' save_every: 5 steps: 20 loss_svg: 'l.svg'");
  const TrainConfig c =
      parse_line({"--eval-only", "--resume", "x", "--config", file, "--precision", "bf16"}).config;
  EXPECT_FALSE(c.trains());
  EXPECT_EQ(c.save + c.loss_svg, "");
  EXPECT_EQ(parse_line({"--sample-only", "--resume", "x"}).config.sample_bytes(), 256);
  EXPECT_EQ(parse_line({"--sample-only", "--resume", "x", "--sample", "9"}).config.sample_bytes(), 9);
}

// A run of --model, whose folder may have become another one since, or be gone.
class InheritedModel : public Inheritance {
 protected:
  static constexpr const char* kConfig = R"({"model_type": "llama", "vocab_size": 97, "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "rope_theta": 500000.0,
      "max_position_embeddings": 128, "bos_token_id": 1})";

  void SetUp() override {
    folder_.write("llama/config.json", kConfig);
    saved_.model = folder_ / "llama";
    saved_.tokens = "t.bin";
    saved_.seq = 32;
    saved_.batch = 8;
    saved_.tp = 2;
    saved_.sequence_parallel = true;
    saved_.model_text = kConfig;
    saved_.model_from = folder_ / "llama/config.json";
    write_model(text_for_checkpoints(saved_));
  }
  void write_model(const std::string& text) {
    sherd::Manifest manifest;
    manifest.sequence = 1;
    manifest.training = {.step = 10, .seed = 7, .info = {{"config", config_text(saved_)}, {"model", text}}};
    folder_.write("step_00000010/manifest.binpb", encode_manifest(manifest));
  }
  void move_away() { std::filesystem::rename(folder_ / "llama", folder_ / "elsewhere"); }
  static double theta(const CommandLine& line) {
    return model_source(line.config).config.description.rope.theta;
  }
};

TEST_F(InheritedModel, TheFolderIsReadWhereItIsAsItWas) {
  const CommandLine line = parse_line({"--resume", path()});
  EXPECT_EQ(line.config.model, saved_.model);
  EXPECT_EQ(line.config.model_text, kConfig);
  EXPECT_EQ(line.config.dim, 64);
  EXPECT_THAT(line.notes, IsEmpty());
  EXPECT_FALSE(model_source(line.config).folder_differs);
  // Written again by another program: other blanks, keys that training does not follow.
  std::string again = kConfig;
  again.replace(again.find("\"bos_token_id\": 1"), 17, "\"bos_token_id\":2");
  folder_.write("llama/config.json", again);
  EXPECT_THAT(parse_line({"--resume", path()}).notes, IsEmpty());
}

TEST_F(InheritedModel, TheCheckpointHasItWhereTheFolderIsGone) {
  move_away();
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"--model", saved_.model},
                                               {"--resume-parts", "model", "--tokens", "t.bin"}}) {
    std::vector<std::string> flags = {"--resume", path()};
    flags.insert(flags.end(), more.begin(), more.end());
    const CommandLine line = parse_line(flags);
    EXPECT_THAT(line.notes,
                ElementsAre(AllOf(HasSubstr("--model " + saved_.model), HasSubstr("the folder is missing"))));
    EXPECT_EQ(line.config.dim, 64);
    EXPECT_EQ(vocabulary(line.config), 97);
    EXPECT_EQ(theta(line), 500000);
    EXPECT_TRUE(model_source(line.config).folder.empty());
  }
  // Later checkpoints hold it as well.
  EXPECT_EQ(text_for_checkpoints(parse_line({"--resume", path()}).config), text_for_checkpoints(saved_));
  // Another name is taken at its word, and so is one without a checkpoint.
  EXPECT_THAT(refusal({"--resume", path(), "--model", folder_ / "lama"}),
              HasSubstr("no such folder, and no published"));
  EXPECT_THAT(refusal({"--model", saved_.model, "--tokens", "t.bin"}),
              HasSubstr("no such folder, and no published"));
  // It is found where it is now.
  EXPECT_THAT(parse_line({"--resume", path(), "--model", folder_ / "elsewhere"}).notes, IsEmpty());
}

TEST_F(InheritedModel, AFolderThatBecameAnotherModelIsNamedInALine) {
  std::string other = kConfig;
  other.replace(other.find("500000.0"), 8, "10000.0");
  folder_.write("llama/config.json", other);
  const CommandLine inherited = parse_line({"--resume", path()});
  ASSERT_EQ(inherited.notes.size(), 1u);
  EXPECT_THAT(inherited.notes[0], AllOf(HasSubstr("\"rope_theta\" 10000.0 (in the checkpoint 500000.0)"),
                                        HasSubstr("the checkpoint's is used"), Not(HasSubstr("\n"))));
  EXPECT_EQ(theta(inherited), 500000);
  EXPECT_TRUE(model_source(inherited.config).folder_differs);
  const CommandLine given = parse_line({"--resume", path(), "--model", saved_.model});
  EXPECT_THAT(given.notes, ElementsAre(HasSubstr("--model's is used")));
  EXPECT_EQ(theta(given), 10000);
  // Much that differs is still one line.
  folder_.write("llama/config.json",
                R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})");
  EXPECT_THAT(parse_line({"--resume", path()}).notes,
              ElementsAre(HasSubstr("more; the checkpoint's is used")));
  folder_.write("llama/config.json", "{");
  EXPECT_THAT(parse_line({"--resume", path()}).notes, ElementsAre(HasSubstr("not valid JSON")));
  EXPECT_THAT(refusal({"--resume", path(), "--model", saved_.model}), HasSubstr("not valid JSON"));
}

// Refused in the same way as a file's text.
TEST_F(InheritedModel, HostileTextInACheckpointIsRefusedInALine) {
  const std::string deep(100'000, '['), zero("{\0}", 3);
  for (const auto& [text, why] : {std::pair<std::string, const char*>{"", "not valid JSON"},
                                  {"{\"model_type\": \"llama\"}", "\"vocab_size\" is missing"},
                                  {R"({"model_type": "llama", "model_type": "gpt2"})", "appears twice"},
                                  {deep.substr(0, 1000), "nested more than 64 deep"},
                                  {deep, "it has 100000 bytes, and at most 65536 are read"},
                                  {zero, "zero byte"},
                                  {R"({"model_type": "llama\nx"})", "llama\\nx"}}) {
    write_model(text);
    for (const bool gone : {false, true}) {
      if (gone) move_away();
      const std::string message = refusal({"--resume", path()});
      EXPECT_THAT(message,
                  AllOf(HasSubstr(why), HasSubstr("step_00000010, its model"), HasSubstr("with --model")));
      EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message << " behind the heading";
      if (gone) std::filesystem::rename(folder_ / "elsewhere", folder_ / "llama");
    }
    EXPECT_THAT(parse_line({"--resume", path(), "--model", saved_.model}).notes, ElementsAre(HasSubstr(why)));
  }
}

TEST_F(InheritedModel, OldCheckpointsAndTextsThatAreTooLongNeedTheFolder) {
  write(config_text(saved_));
  EXPECT_THAT(parse_line({"--resume", path()}).notes, IsEmpty());
  move_away();
  EXPECT_THAT(refusal({"--resume", path()}), HasSubstr("no such folder"));
  std::string text = kConfig;
  text.insert(1, "\"id2label\": \"" + std::string(kMostModelText, 'x') + "\", ");
  folder_.write("long/config.json", text);
  const CommandLine line =
      parse_line({"--model", folder_ / "long", "--tokens", "t.bin", "--seq", "32", "--save", "run"});
  EXPECT_THAT(line.notes, ElementsAre(HasSubstr("--resume will need the folder")));
  EXPECT_EQ(text_for_checkpoints(line.config), "");
}

// Rows are split over --tp, which belongs to one run; the choice comes along, and is idle without.
TEST_F(InheritedModel, SequenceParallelismComesAlong) {
  EXPECT_TRUE(parse_line({"--resume", path(), "--ranks", "2", "--tp", "2"}).config.sequence_parallel);
  EXPECT_TRUE(parse_line({"--resume", path()}).config.sequence_parallel);
  EXPECT_FALSE(parse_line({"--resume", path(), "--sequence-parallel", "false"}).config.sequence_parallel);
  EXPECT_THAT(refusal({"--resume", path(), "--sequence-parallel", "true"}), HasSubstr("give --tp N"));
  EXPECT_THAT(refusal({"--sequence-parallel", "true", "--ranks", "2", "--tp", "2"}),
              HasSubstr("--sequence-parallel true: the byte model keeps all rows"));
}

}  // namespace
}  // namespace train_gpt
