// Whole runs of models from Hugging Face folders: the same bits however they are sharded, stopped or gone on
// with.

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& family) { return fs::path(GOLDEN_FOLDER) / "models" / family; }

// Tokens below every folder's vocabulary, two bytes each.
std::string token_file() {
  const fs::path path = scratch("tokens.bin");
  std::string bytes;
  for (int64_t i = 0; i < 3000; ++i) {
    bytes.push_back(static_cast<char>((i * i + 7 * (i / 5)) % 190));
    bytes.push_back('\0');
  }
  write_file(path, bytes);
  return path.string();
}

Flags model(const std::string& family) {
  const Flags flags = {"--model",        folder_of(family).string(),
                       "--tokens",       token_file(),
                       "--token-format", "u16",
                       "--seq",          "16",
                       "--batch",        "8",
                       "--lr",           "3e-3",
                       "--threads",      "1",
                       "--steps",        "6"};
  // Its selection biases are part of checkpoints and exported weights.
  return family == "deepseek_v3" ? flags + Flags{"--moe-bias-speed", "0.001"} : flags;
}

Outcome train(const std::string& family, const Flags& extra) {
  const fs::path metrics = scratch("metrics.jsonl"), weights = scratch("weights.safetensors");
  fs::remove(metrics);
  const Flags outputs = {"--metrics",      metrics.string(), "--export-weights", weights.string(),
                         "--measure-peak", "false",          "--quiet"};
  const Finished run = run_train_gpt(model(family) + extra + outputs);
  EXPECT_EQ(run.exit_code, 0) << show(extra) << run.err;
  Outcome outcome;
  for (const nlohmann::json& step : read_steps(metrics)) {
    outcome.losses.push_back(step["loss"]);
    outcome.norms.push_back(step["grad_norm"]);
  }
  outcome.weights = read_file(weights);
  return outcome;
}

class ModelRun : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelRun, StrategiesLayoutsAndBucketsAgreeInBits) {
  const bool experts = GetParam() != "llama";
  const Flags ranks = {"--ranks", "4"};
  for (const std::string optimizer : {"adamw", "muon", "soap"}) {
    const Flags common = ranks + Flags{"--optimizer", optimizer};
    const Outcome want = train(GetParam(), common + Flags{"--strategy", "zero0"});
    EXPECT_LT(want.losses.back(), want.losses.front());
    std::vector<Flags> others = {{"--strategy", "zero3"},
                                 {"--strategy", "zero3", "--recompute", "blocks", "--prefetch", "0"},
                                 {"--strategy", "zero2", "--layout", "even_rows"},
                                 {"--strategy", "zero2", "--layout", "whole_param"},
                                 {"--strategy", "zero2", "--layout", "whole_param", "--bucket-size", "1"},
                                 {"--strategy", "zero1", "--layout", "whole_param", "--bucket-size", "1"},
                                 {"--strategy", "zero1", "--replicas", "2", "--outer", "optim"}};
    if (experts) others.push_back({"--strategy", "zero1"});
    for (const Flags& other : others) EXPECT_TRUE(train(GetParam(), common + other) == want) << show(other);
  }
}

TEST_P(ModelRun, ArrangementsAgreeToRounding) {
  // The balancing loss is that of a microbatch, which is smaller on more ranks.
  const Flags common = GetParam() != "llama" ? Flags{"--moe-aux", "0"} : Flags{};
  const Outcome one = train(GetParam(), common);
  std::vector<Flags> arrangements = {{"--ranks", "4", "--tp", "2"},
                                     {"--ranks", "4", "--tp", "4"},
                                     {"--ranks", "4", "--tp", "2", "--sequence-parallel", "true"}};
  if (GetParam() != "llama") {
    arrangements.push_back({"--ranks", "4", "--expert-parallel", "2"});
    arrangements.push_back({"--ranks", "4", "--expert-parallel", "2", "--tp", "2"});
    arrangements.push_back({"--ranks", "4", "--expert-parallel", "4", "--tp", "2", "--strategy", "zero1"});
  }
  for (const Flags& a : arrangements) expect_close_losses(train(GetParam(), a + common), one, 1e-4, show(a));
}

TEST_P(ModelRun, ResumesElsewhereInBits) {
  const fs::path folder = scratch("checkpoints");
  Outcome whole;
  for (const std::string optimizer : {"soap", "muon"}) {
    fs::remove_all(folder);
    const Flags ranks = {"--ranks", "4", "--optimizer", optimizer};
    whole = train(GetParam(), ranks);
    train(GetParam(), ranks + Flags{"--stop-at", "3", "--save", folder.string()});
    const Outcome rest = train(GetParam(), {"--ranks", "4", "--resume", folder.string(), "--strategy",
                                            "zero1", "--layout", "whole_param"});
    EXPECT_EQ(rest.weights, whole.weights) << optimizer;
  }
  // Settings that are not given come from the checkpoint: model, tokens, optimizer, batch.
  const fs::path metrics = scratch("rest.jsonl");
  fs::remove(metrics);
  const Finished alone = run_train_gpt({"--resume", folder.string(), "--ranks", "2", "--tp", "2", "--metrics",
                                        metrics.string(), "--threads", "1", "--quiet"});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_NEAR(steps.back()["loss"], whole.losses.back(), 1e-3 * whole.losses.back());
}

INSTANTIATE_TEST_SUITE_P(Families, ModelRun, ::testing::Values("llama", "qwen3_moe", "deepseek_v3"),
                         [](const auto& p) { return p.param; });

TEST(ModelClip, IsTheSameUnderAllArrangementsAndRefusedForNormalisedHeads) {
  for (const std::string family : {"llama", "deepseek_v3"}) {
    const Flags dense = {"--optimizer", "muon"},
                free = family == "llama" ? dense : dense + Flags{"--moe-aux", "0"},
                clip = free + Flags{"--qk-clip", "0.02"}, ranks = {"--ranks", "4"};
    const Outcome one = train(family, clip),
                  want = train(family, clip + ranks + Flags{"--strategy", "zero0"});
    EXPECT_NE(one.weights, train(family, free).weights) << family << ": nothing was clipped";
    expect_close_losses(want, one, 1e-4, family);
    for (const Flags& other : {Flags{"--strategy", "zero3", "--recompute", "blocks"},
                               Flags{"--strategy", "zero2", "--layout", "whole_param"}})
      EXPECT_TRUE(train(family, clip + ranks + other) == want) << family << show(other);
    expect_close_losses(train(family, clip + ranks + Flags{"--tp", "2"}), one, 1e-4, family + " tp 2");
  }
  // Six query heads on three key heads: of three queries, two share a key head that the next rank needs, too.
  const Flags clip = {"--optimizer", "muon", "--qk-clip", "0.02"};
  const Outcome one = train("qwen2", clip);
  EXPECT_NE(one.weights, train("qwen2", {"--optimizer", "muon"}).weights);
  for (const Flags& tp : {Flags{"--ranks", "2", "--tp", "2"}, Flags{"--ranks", "4", "--tp", "2"}})
    expect_close_losses(train("qwen2", clip + tp + Flags{"--check-replicas", "1"}), one, 1e-4, show(tp));
  const Finished run = run_train_gpt(model("qwen3") + Flags{"--qk-clip", "1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--qk-clip 1: --model"));
}

TEST(ModelFolders, ComeBackByteForByteAndAreRefusedByName) {
  for (const std::string family : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral",
                                   "deepseek_v3", "olmo2", "glm4_moe", "olmo3", "gemma3_text", "gpt_oss"}) {
    const fs::path out = scratch("folder");
    fs::remove_all(out);
    const Finished run = run_train_gpt({"--model", folder_of(family).string(), "--steps", "0", "--ranks", "2",
                                        "--export-hf", out.string(), "--quiet"});
    ASSERT_EQ(run.exit_code, 0) << family << run.err;
    for (const char* file : {"config.json", "model.safetensors"})
      EXPECT_EQ(read_file(out / file), read_file(folder_of(family) / file)) << family << " " << file;
  }
  const Finished unknown = run_train_gpt({"--model", "no-such-model", "--steps", "0"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--model no-such-model"), HasSubstr("gpt2-124m")));
}

TEST(ModelFolders, GenerateTheSameTokensOnAnyRanks) {
  const Flags sample = {"--steps",         "0",     "--sample", "12", "--temperature", "0",
                        "--prompt-tokens", "5,6,7", "--quiet"};
  for (const std::string family :
       {"gpt2", "qwen3_moe", "deepseek_v3", "olmo2", "olmo3", "gemma3_text", "gpt_oss"}) {
    const Flags flags = Flags{"--model", folder_of(family).string()} + sample;
    const Finished one = run_train_gpt(flags);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    EXPECT_THAT(one.out, HasSubstr("5 6 7 "));
    EXPECT_EQ(run_train_gpt(flags + Flags{"--ranks", "2", "--tp", "2"}).out, one.out) << family;
  }
}

// The tokenizer's template puts token 0 first.
TEST(ModelFolders, PromptsAreEncodedByTheTokenizer) {
  const fs::path own = fs::path(GOLDEN_FOLDER) / "tokenizers" / "words.json";
  const auto run = [&](const fs::path& tokenizer, const Flags& start) {
    return run_train_gpt(Flags{"--model", folder_of("llama").string(), "--sample-only", "--sample", "6",
                               "--temperature", "0", "--quiet"} +
                         (tokenizer.empty() ? Flags{} : Flags{"--tokenizer", tokenizer.string()}) + start);
  };
  const Finished text = run(own, {"--prompt", "XQ"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, testing::StartsWith("<|begin_of_text|>XQ"));
  EXPECT_EQ(text.out, run(own, {"--prompt-tokens", "0,57,50"}).out);
  EXPECT_EQ(text.out, run(own, {"--prompt", "XQ", "--ranks", "2"}).out);
  const auto refused = [&](int code, const fs::path& tokenizer, const Flags& start,
                           const std::string& words) {
    const Finished f = run(tokenizer, start);
    EXPECT_EQ(f.exit_code, code) << show(start);
    EXPECT_THAT(f.err, AllOf(HasSubstr(words), HasSubstr("--prompt-tokens")));
  };
  refused(2, own, {"--prompt", "XQ", "--prompt-tokens", "1"}, "is the start of the text");
  refused(1, "", {"--prompt", "XQ"}, "has no tokenizer.json; give one with --tokenizer FILE");
  refused(1, own, {"--prompt", "the lazy dog"}, "has 199 tokens; give the model's own");
  refused(1, own, {"--prompt", "\xff"}, "byte 0, 0xff, is not UTF-8");
  nlohmann::json other = nlohmann::json::parse(read_file(own));
  other["normalizer"] = {{"type", "Lowercase"}};
  const fs::path unsupported = scratch("unsupported.json");
  write_file(unsupported, other.dump());
  refused(1, unsupported, {"--prompt", "XQ"}, "the normalizer 'Lowercase'");
}

// A copy of a golden folder without what only its tests need, with some settings of config.json replaced.
fs::path copy_of(const std::string& family, const nlohmann::json& settings, bool weights) {
  const fs::path copy = scratch("copy");
  fs::remove_all(copy);
  fs::create_directory(copy);
  nlohmann::json config = nlohmann::json::parse(read_file(folder_of(family) / "config.json"));
  config.update(settings);
  write_file(copy / "config.json", config.dump());
  if (weights) fs::copy_file(folder_of(family) / "model.safetensors", copy / "model.safetensors");
  return copy;
}

// Its head for multi-token prediction, and all else, has random values.
fs::path folder_with_head() {
  const fs::path in = copy_of("deepseek_v3", {{"num_nextn_predict_layers", 1}}, false), out = scratch("head");
  fs::remove_all(out);
  const Finished run = run_train_gpt({"--model", in.string(), "--from-scratch", "--steps", "0", "--ranks",
                                      "2", "--mtp-weight", "0.3", "--export-hf", out.string(), "--quiet"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return out;
}

TEST(ModelMultiToken, StrategiesAgreeInBitsAndRunsResumeElsewhere) {
  const Flags base = {"--model", folder_with_head().string(), "--mtp-weight", "0.3", "--ranks", "4"};
  for (const std::string optimizer : {"adamw", "muon"}) {
    const Flags common = base + Flags{"--optimizer", optimizer};
    const Outcome want = train("deepseek_v3", common + Flags{"--strategy", "zero0"});
    for (const Flags& other : {Flags{"--strategy", "zero3", "--eval-every", "1"},
                               Flags{"--strategy", "zero3", "--recompute", "blocks", "--prefetch", "0"},
                               Flags{"--strategy", "zero2", "--layout", "whole_param"},
                               Flags{"--strategy", "zero1", "--replicas", "2", "--outer", "optim"}})
      EXPECT_TRUE(train("deepseek_v3", common + other) == want) << show(other);
    const fs::path saved = scratch("checkpoints");
    fs::remove_all(saved);
    train("deepseek_v3", common + Flags{"--stop-at", "3", "--save", saved.string()});
    const Outcome rest =
        train("deepseek_v3", {"--model", scratch("head").string(), "--ranks", "4", "--resume", saved.string(),
                              "--strategy", "zero2", "--layout", "whole_param"});
    EXPECT_EQ(rest.weights, want.weights) << "the weight is inherited";
  }
}

TEST(ModelMultiToken, FoldersComeBackByteForByteAndTheHeadIsOfNoEffectElsewhere) {
  const fs::path folder = scratch("head"), out = scratch("out");
  folder_with_head();
  for (const char* name : {"eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm",
                           "shared_head.head", "self_attn.kv_b_proj", "mlp.experts.11.down_proj"})
    EXPECT_THAT(read_file(folder / "model.safetensors"),
                HasSubstr(std::string("\"model.layers.3.") + name + ".weight\""));
  const Flags with = {"--mtp-weight", "0.3"};
  for (const Flags& weight : {Flags{}, with}) {
    fs::remove_all(out);
    const Finished run = run_train_gpt(weight + Flags{"--model", folder.string(), "--steps", "0", "--ranks",
                                                      "2", "--quiet", "--export-hf", out.string()});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    for (const char* file : {"config.json", "model.safetensors"})
      EXPECT_EQ(read_file(out / file), read_file(folder / file)) << show(weight) << file;
    EXPECT_EQ(run.err.find("--mtp-weight X trains it") != run.err.npos, weight.empty()) << run.err;
  }
  const Flags of = {"--model", folder.string(), "--quiet"};
  for (const Flags& flags :
       {Flags{"--eval-only", "--tokens", token_file(), "--token-format", "u16", "--seq", "16"},
        Flags{"--sample-only", "--sample", "12", "--prompt-tokens", "5,6,7", "--temperature", "0"}}) {
    const Finished run = run_train_gpt(of + flags + with);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, run_train_gpt(of + flags).out) << show(flags);
  }
}

TEST(ModelMultiToken, IsRefusedForFoldersWithoutAHead) {
  const Flags with = {"--mtp-weight", "0.3"};
  const Finished none = run_train_gpt(model("deepseek_v3") + with);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("has 0 heads for multi-token prediction"));
  // transformers drops the head's weights and keeps the key.
  const fs::path folder = copy_of("deepseek_v3", {{"num_nextn_predict_layers", 1}}, true);
  const Finished lost = run_train_gpt(model("deepseek_v3") + Flags{"--model", folder.string()} + with);
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.err, HasSubstr("model.layers.3.eh_proj.weight"));
  const Finished adapters =
      run_train_gpt(model("deepseek_v3") + Flags{"--model", folder.string(), "--lora-rank", "2"} + with);
  EXPECT_EQ(adapters.exit_code, 2);
  EXPECT_THAT(adapters.err, HasSubstr("--mtp-weight 0.3: adapters leave the head as it is"));
}

// With a cache, over the window's end and over longrope's original length: the last token follows from the text before it
// as from a prompt, without keys of another length.
TEST(ModelFolders, TextGoesOverTheSlidingWindowAndLongropesOriginalLength) {
  const auto longrope = nlohmann::json{{"rope_type", "longrope"},
                                       {"short_factor", {1, 1, 1, 1, 1}},
                                       {"long_factor", {1, 2, 4, 8, 16}},
                                       {"original_max_position_embeddings", 16},
                                       {"attention_factor", 1.0}};
  const auto text = [](const nlohmann::json& settings, const std::string& prompt, int count) {
    const Finished run =
        run_train_gpt({"--model", copy_of("mistral", settings, true).string(), "--sample-only", "--sample",
                       std::to_string(count), "--temperature", "0", "--prompt-tokens", prompt, "--quiet"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::vector<std::string> words;
    std::istringstream in(run.out);
    for (std::string word; in >> word;) words.push_back(word);
    EXPECT_GE(words.size(), static_cast<size_t>(count)) << run.out;
    words.erase(words.begin(), words.end() - count);
    return words;
  };
  const auto plain = text(nlohmann::json::object(), "5,6,7", 30);
  for (const nlohmann::json& settings : {nlohmann::json{{"sliding_window", 8}},
                                         nlohmann::json{{"sliding_window", 8}, {"rope_scaling", longrope}},
                                         nlohmann::json{{"rope_scaling", longrope}}}) {
    const auto words = text(settings, "5,6,7", 30);
    EXPECT_NE(words, plain) << settings;
    for (const size_t before : {12, 13, 14, 29}) {
      std::string prompt = "5,6,7";
      for (size_t i = 0; i < before; ++i) prompt += "," + words[i];
      EXPECT_EQ(text(settings, prompt, 1).back(), words[before]) << settings << before;
    }
  }
}

TEST(ModelFolders, SequencesMayBeLongerThanTheWindowAndNotThanThePositions) {
  const auto run = [](const nlohmann::json& settings, const char* seq) {
    return run_train_gpt(model("mistral") + Flags{"--model", copy_of("mistral", settings, true).string(),
                                                  "--seq", seq, "--steps", "1", "--quiet"});
  };
  EXPECT_EQ(run({{"sliding_window", 8}}, "16").exit_code, 0);
  const Finished beyond =
      run({{"max_position_embeddings", 8}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}}, "16");
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_THAT(beyond.err, AllOf(HasSubstr("max_position_embeddings"), HasSubstr("\"dynamic\"")));
}

TEST(ModelFolders, AModelFromScratchGoesOutAsANewFolder) {
  const fs::path in = copy_of("llama", {{"dtype", "bfloat16"}}, false), out = scratch("out"),
                 again = scratch("again");
  fs::remove_all(out);
  fs::remove_all(again);
  write_file(in / "model.safetensors.index.json", "of weights that are not there");
  write_file(in / "LICENSE", "do");
  const Finished first = run_train_gpt({"--model", in.string(), "--from-scratch", "--steps", "0", "--ranks",
                                        "2", "--export-hf", out.string(), "--quiet"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_FALSE(fs::exists(out / "model.safetensors.index.json"));
  EXPECT_EQ(read_file(out / "config.json"), read_file(in / "config.json"));
  EXPECT_EQ(read_file(out / "LICENSE"), "do");
  EXPECT_THAT(read_file(out / "model.safetensors"), AllOf(HasSubstr("BF16"), Not(HasSubstr("F32"))))
      << "as config.json says";
  const Finished second =
      run_train_gpt({"--model", out.string(), "--steps", "0", "--export-hf", again.string(), "--quiet"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(read_file(again / "model.safetensors") == read_file(out / "model.safetensors"));
  // Without weights to follow nothing is trained in vain.
  fs::remove_all(again);
  fs::remove(in / "model.safetensors.index.json");
  const Finished nothing = run_train_gpt(model("llama") + Flags{"--model", in.string(), "--init-weights",
                                                                out.string(), "--export-hf", again.string()});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("holds no .safetensors files"));
  EXPECT_THAT(nothing.out, Not(HasSubstr("loss")));
}

TEST(ModelFolders, ModelSafetensorsIsReadBesideAnIndex) {
  const fs::path folder = copy_of("llama", nlohmann::json::object(), true);
  const Flags flags = {"--eval-only", "--tokens", token_file(), "--token-format",
                       "u16",         "--seq",    "16",         "--quiet"};
  const Finished want = run_train_gpt(Flags{"--model", folder.string()} + flags);
  ASSERT_EQ(want.exit_code, 0) << want.err;
  EXPECT_EQ(want.err, "");
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map": {"lm_head.weight": "gone.safetensors"}})");
  const Finished run = run_train_gpt(Flags{"--model", folder.string(), "--ranks", "2"} + flags);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, want.out);
  EXPECT_THAT(run.err, AllOf(HasSubstr("model.safetensors' is read, as by transformers"),
                             HasSubstr("'model.safetensors.index.json' beside it is not")));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(ModelAdapters, ARunBeginsWithThoseOfAnother) {
  const fs::path ad = fresh("ad"), saved = fresh("saved"), weights = scratch("of_resume.safetensors"),
                 again = scratch("of_adapters.safetensors");
  const std::string in = folder_of("llama").string();
  const auto lora = [](const std::string& rank, const std::string& alpha, const std::string& targets) {
    return Flags{"--lora-rank", rank, "--lora-alpha", alpha, "--lora-targets", targets};
  };
  const Flags own = lora("2", "8", "[qk]_proj|down_proj"), begin = {"--init-weights", ad.string()};
  const Finished first = run_train_gpt(model("llama") + own +
                                       Flags{"--steps", "2", "--ranks", "2", "--save", saved.string(),
                                             "--export-adapter", ad.string(), "--quiet"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  // A resume inherits --batch, and with it the order of sums.
  const Flags evaluated = {"--eval-only", "--tokens", token_file(), "--token-format", "u16", "--seq",
                           "16",          "--batch",  "8",          "--quiet"};
  const Finished want = run_train_gpt(evaluated + Flags{"--resume", saved.string()});
  const Finished base = run_train_gpt(evaluated + Flags{"--model", in});
  ASSERT_EQ(want.exit_code, 0) << want.err;
  for (const Flags& ranks : {Flags{}, Flags{"--ranks", "4", "--tp", "2", "--strategy", "zero3"}}) {
    const Finished got = run_train_gpt(evaluated + Flags{"--model", in} + own + begin + ranks);
    ASSERT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.err, "");
    if (ranks.empty()) {
      EXPECT_EQ(got.out, want.out);
    }
    EXPECT_NE(got.out, base.out) << "the adapters change the loss";
    // All weights are those of the checkpoint, bit for bit, and go out as they came in.
    const fs::path out = fresh("out");
    for (const Flags& run :
         {Flags{"--resume", saved.string(), "--resume-parts", "model", "--export-weights", weights.string()},
          Flags{"--model", in, "--export-weights", again.string(), "--export-adapter", out.string()} + own +
              begin}) {
      const Finished exported = run_train_gpt(run + ranks + Flags{"--steps", "0", "--quiet"});
      ASSERT_EQ(exported.exit_code, 0) << exported.err;
    }
    EXPECT_TRUE(read_file(again) == read_file(weights));
    EXPECT_TRUE(read_file(out / "adapter_model.safetensors") == read_file(ad / "adapter_model.safetensors"));
    EXPECT_EQ(read_file(out / "adapter_config.json"), read_file(ad / "adapter_config.json"));
  }
  const Finished goes_on = run_train_gpt(model("llama") + own + begin + Flags{"--steps", "2", "--quiet"});
  EXPECT_EQ(goes_on.exit_code, 0) << goes_on.err;

  const auto refused = [&](int code, const Flags& flags, const std::string& words) {
    const Finished run = run_train_gpt(model("llama") + begin + flags);
    EXPECT_EQ(run.exit_code, code) << show(flags) << run.err;
    EXPECT_THAT(run.err, HasSubstr(words));
  };
  refused(2, {}, "it holds adapters, and the model has none; give --lora-rank 2 --lora-alpha 8");
  refused(2, lora("4", "16", "q_proj"),
          "have rank 2, and --lora-rank is 4; alpha 8, and --lora-alpha is 16; give");
  refused(1, lora("2", "8", "[qv]_proj|down_proj"),
          "its targets are down_proj, k_proj, q_proj, and --lora-targets is '[qv]_proj|down_proj'; give one "
          "that");
  refused(1, lora("2", "8", "[qv]_proj|down_proj"),
          "missing in it: base_model.model.model.layers.0.self_attn.v_proj.lora_A");
  refused(1, lora("2", "8", "q_proj"),
          "unknown to the run: base_model.model.model.layers.0.mlp.down_proj.lora_A");
  refused(2, own + Flags{"--model", "qwen3-0.6b"},
          "it holds adapters alone, and --model qwen3-0.6b has no weights here");
  fs::remove(ad / "adapter_model.safetensors");
  refused(1, own, "adapter_model.safetensors': it is missing; save the adapters as safetensors");
}

TEST(ModelAdapters, TargetsThatMatchNothingAreNamedOnce) {
  const Finished run =
      run_train_gpt(model("llama") + Flags{"--lora-rank", "2", "--lora-targets", "nosuch", "--steps", "1"});
  EXPECT_EQ(run.exit_code, 1);
  const size_t first = run.err.find("the adapters' targets 'nosuch' match no matrix");
  ASSERT_NE(first, std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("nosuch", first + 40), std::string::npos) << run.err;
}

// A checkpoint of another model: what differs is named, not that the optimizer's state might be left out.
TEST(ModelFolders, ACheckpointOfAnotherModelIsNamedWithTheFlag) {
  const fs::path folder = fresh("saved");
  ASSERT_EQ(
      run_train_gpt(model("llama") + Flags{"--steps", "1", "--save", folder.string(), "--quiet"}).exit_code,
      0);
  const fs::path text = scratch("text");
  write_file(text, golden_text());
  const Finished run = run_train_gpt({"--resume", folder.string(), "--model", "", "--data", text.string(),
                                      "--seq", "16", "--steps", "2", "--quiet"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("it was saved with "), HasSubstr("--model '"),
                             HasSubstr("leave these flags out"), Not(HasSubstr("optimizer state")),
                             Not(HasSubstr("load the model only"))));
}

// The optimizer's state is the checkpoint's, the weights are those of the folder.
TEST(ModelFolders, AnOptimizerAloneResumesWithTheFoldersWeights) {
  const fs::path saved = scratch("saved"), out = scratch("out");
  fs::remove_all(saved);
  fs::remove_all(out);
  const Finished whole =
      run_train_gpt(model("llama") + Flags{"--steps", "2", "--save", saved.string(), "--quiet"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const Finished run = run_train_gpt(
      {"--resume", saved.string(), "--resume-parts", "optimizer", "--export-hf", out.string(), "--quiet"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(read_file(out / "model.safetensors") == read_file(folder_of("llama") / "model.safetensors"));
}

TEST(ModelFolders, WhatIsWrongWithTheEndIsSaidAtTheBeginning) {
  const fs::path file = scratch("file");
  write_file(file, "");
  const auto refused = [](int code, const Flags& flags, const std::string& words) {
    const Finished run = run_train_gpt(model("llama") + flags);
    EXPECT_EQ(run.exit_code, code) << show(flags);
    EXPECT_THAT(run.err, HasSubstr(words));
    EXPECT_EQ(run.out, "") << show(flags);
  };
  refused(1, {"--export-hf", file.string()}, "it exists and is not a folder");
  refused(1, {"--sample", "3", "--prompt-tokens", "1", "--tokenizer", file.string()}, file.string());
  refused(2, {"--sample", "3", "--prompt-tokens", "1,199"}, "'199' is not a token");
  refused(2, {"--ranks", "3", "--tp", "3"}, "divide its 4 heads");
}

}  // namespace
}  // namespace sherd::test
