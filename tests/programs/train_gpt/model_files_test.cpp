// Files of --model's folder that a run reads before it begins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"
#include "train_gpt/model/model_source.h"
#include "train_gpt/run/generate.h"
#include "train_gpt/run/trainer.h"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TrainConfig config_of(const fs::path& folder) {
  TrainConfig c;
  c.model = folder.string();
  c.steps = 0;
  return c;
}

void export_to(const TrainConfig& config, const fs::path& removed = {}) {
  sherd::test::launch(1, [&](sherd::RankContext& r) {
    Trainer trainer(r, config, nullptr);
    if (!removed.empty()) fs::remove_all(removed);
    trainer.export_folder();
  });
}

sherd::nn::ModelDescription small_llama() {
  return {.family = sherd::nn::ModelFamily::llama,
          .vocab = 32,
          .dim = 16,
          .layers = 1,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .hidden = 24,
          .positions = 16};
}

/// A folder with config.json and random weights.
void write_model(const TemporaryFolder& folder, const std::string& name) {
  folder.write("scratch/config.json", sherd::hf::model_config_text(small_llama(), sherd::DType::f32));
  TrainConfig scratch = config_of(folder / "scratch");
  scratch.from_scratch = true;
  scratch.export_hf = folder / name;
  export_to(with_model_files(scratch));
}

// A finished run does not need the folder that it came from any more.
TEST(ModelFiles, AreReadBeforeTheRunAndNotAgain) {
  const TemporaryFolder folder;
  write_model(folder, "in");

  folder.write("in/tokenizer.json", "{}");
  TrainConfig c = config_of(folder / "in");
  c.export_hf = folder / "out";
  EXPECT_EQ(with_model_files(c).files->tokenizer, nullptr) << "no text is asked for";
  c.sample = 3;
  EXPECT_THAT(message_of<sherd::IoError>([&] { with_model_files(c); }),
              HasSubstr(folder / "in/tokenizer.json"));
  fs::remove(folder / "in/tokenizer.json");
  const std::string weights = read_bytes(folder / "in/model.safetensors");
  const TrainConfig ready = with_model_files(c);
  export_to(ready, folder / "in");
  EXPECT_EQ(read_bytes(folder / "out/model.safetensors"), weights);
  EXPECT_EQ(vocabulary(ready), 32);
  std::string shown;
  ShownTokens tokens(ready, [&](const std::string& text) { shown += text; });
  tokens.add(7);
  EXPECT_EQ(shown, "7 ");
  EXPECT_EQ(with_model_files(TrainConfig()).files, nullptr);
}

// Building such a model takes gigabytes and seconds.
TEST(ModelFiles, SizesThatTheWeightsCannotHaveAreRefusedFromHeaders) {
  const TemporaryFolder folder;
  write_model(folder, "in");
  const auto refusal = [&](auto change) {
    sherd::nn::ModelDescription d = small_llama();
    change(d);
    folder.write("in/config.json", sherd::hf::model_config_text(d, sherd::DType::f32));
    return message_of<sherd::InvalidArgument>([&] { with_model_files(config_of(folder / "in")); });
  };
  EXPECT_THAT(
      refusal([](auto& d) { d.layers = 9999; }),
      AllOf(HasSubstr(folder / "in/config.json"), HasSubstr("9999 blocks"), HasSubstr("holds 1 block;")));
  EXPECT_THAT(refusal([](auto& d) { d.vocab = 900'000'000; }), HasSubstr("vocabulary 900000000"));
  EXPECT_THAT(refusal([](auto& d) { d.dim = 1 << 20; }), HasSubstr("1048576 columns"));
  EXPECT_THAT(refusal([](auto& d) { d.hidden = 1 << 20, d.layers = 60; }), HasSubstr("60 blocks"));
  // A checkpoint that is resumed, and other weights, are compared as well; models that are built at once are not.
  TrainConfig c = config_of(folder / "scratch");
  c.init_weights = folder / "in";
  EXPECT_NO_THROW(with_model_files(c));
  folder.write("scratch/config.json", read_bytes(folder / "in/config.json"));
  EXPECT_THAT(message_of<sherd::InvalidArgument>([&] { with_model_files(c); }), HasSubstr("60 blocks"));
}

TEST(ModelFiles, LinksOutOfTheFolderAreNotFollowed) {
  const TemporaryFolder folder;
  write_model(folder, "in");
  folder.write("secret", "{}");
  fs::create_symlink("../secret", folder / "in/chat_template.jinja");
  TrainConfig c = config_of(folder / "in");
  c.export_hf = folder / "out";
  testing::internal::CaptureStderr();
  export_to(with_model_files(c));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("leaves out 'chat_template.jinja'"));
  EXPECT_FALSE(fs::exists(folder / "out/chat_template.jinja"));
  EXPECT_TRUE(fs::exists(folder / "out/model.safetensors"));

  for (const char* name : {"tokenizer.json", "config.json"}) {
    fs::remove(folder / ("in/" + std::string(name)));
    fs::create_symlink("../secret", folder / ("in/" + std::string(name)));
    c.sample = 3;
    EXPECT_THAT(message_of<sherd::IoError>([&] { with_model_files(c); }), HasSubstr("outside of its folder"))
        << name;
  }
}

TEST(ModelFiles, TensorsOutsideTheModelAreLeftOutUnlessWeightsAreStrict) {
  const TemporaryFolder folder;
  write_model(folder, "in");
  sherd::nn::ModelDescription d = small_llama();
  d.layers = 2;  // a model of one block leaves out the second block's tensors
  folder.write("scratch/config.json", sherd::hf::model_config_text(d, sherd::DType::f32));
  TrainConfig two = config_of(folder / "scratch");
  two.from_scratch = true;
  two.export_hf = folder / "two";
  export_to(with_model_files(two));
  fs::copy_file(folder / "in/config.json", folder / "two/config.json", fs::copy_options::overwrite_existing);

  TrainConfig c = config_of(folder / "two");
  sherd::test::launch(1, [&](sherd::RankContext& r) {
    const Trainer trainer(r, c, nullptr);
    EXPECT_EQ(trainer.ignored_tensors().size(), 9u);
    EXPECT_THAT(trainer.ignored_tensors(), testing::Each(HasSubstr("layers.1.")));
  });
  c.export_hf = folder / "out";
  export_to(with_model_files(c));
  EXPECT_EQ(read_bytes(folder / "out/model.safetensors"), read_bytes(folder / "two/model.safetensors"));
  c.strict_weights = true;
  EXPECT_THAT(message_of<sherd::InvalidArgument>([&] { export_to(c); }),
              HasSubstr("unknown to the run: model.layers.1."));
}

}  // namespace
}  // namespace train_gpt
