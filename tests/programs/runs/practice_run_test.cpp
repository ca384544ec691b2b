// Runs that take their settings from a checkpoint, and such that evaluate or write text without training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

Flags settings() {
  return {"--dim",      "36",    "--layers",    "2",    "--heads",       "4",    "--seq",         "24",
          "--batch",    "8",     "--seed",      "5",    "--lr-schedule", "wsd",  "--decay-steps", "3",
          "--steps",    "6",     "--optimizer", "muon", "--adam-beta2",  "0.99", "--precision",   "bf16",
          "--strategy", "zero2", "--min-lr",    "0",    "--eval-every",  "4"};
}

std::string data() {
  const fs::path data = scratch("text");
  write_file(data, golden_text());
  return data.string();
}

// Losses, norms and rates of the steps, whose bits are the run's.
std::vector<nlohmann::json> figures(const fs::path& metrics) {
  std::vector<nlohmann::json> figures;
  for (const nlohmann::json& step : read_steps(metrics)) {
    nlohmann::json one;
    for (const char* name : {"step", "loss", "grad_norm", "lr", "eval_loss", "eval_ppl"})
      if (step.contains(name)) one[name] = step[name];
    figures.push_back(one);
  }
  return figures;
}

Finished run_from(const fs::path& checkpoint, const Flags& flags) {
  return run_train_gpt(Flags{"--resume", checkpoint.string()} + flags);
}

TEST(PracticeRun, ACheckpointAloneIsEnoughToResume) {
  const fs::path saved = fresh("saved"), all = fresh("all.jsonl"), rest = fresh("rest.jsonl");
  const Flags ranks = {"--ranks", "2"};
  const Finished whole = run_train_gpt(
      settings() + ranks +
      Flags{"--data", data(), "--save", saved.string(), "--save-every", "2", "--metrics", all.string()});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const Finished f = run_from(saved / "step_00000002", ranks + Flags{"--metrics", rest.string()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  EXPECT_THAT(f.out, AllOf(HasSubstr("settings from the checkpoint: --data "), HasSubstr("--dim 36"),
                           HasSubstr("--adam-beta2 0.99"), HasSubstr("2 steps are done, of 6")));
  auto want = figures(all);
  ASSERT_EQ(want.size(), 6u);
  EXPECT_NEAR(want.back()["lr"].get<double>(), 1e-3, 1e-15)
      << "wsd falls from 3e-3 to 0 in the last three steps";
  EXPECT_EQ(want[3]["eval_ppl"].get<double>(), std::exp(want[3]["eval_loss"].get<double>()));
  want.erase(want.begin(), want.begin() + 2);
  EXPECT_EQ(figures(rest), want);
  for (const nlohmann::json& step : read_steps(all)) {
    EXPECT_GT(step["flops_per_s"].get<double>(), 0);
    EXPECT_FALSE(step.contains("mfu")) << "the peak of a CPU is not known";
    EXPECT_GT(step["product_share"].get<double>(), 0);
    EXPECT_NEAR(step["flops_per_s"].get<double>() / step["tokens_per_s"].get<double>(),
                6 * (2 * 12 * 36 * 36 + 256 * 36) + 6 * 25 * 2 * 36, 1);
  }

  // Given settings win; those that may not change are named.
  const Finished longer = run_from(saved, {"--steps", "7", "--lr", "0.001", "--warmup", "1"});
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(longer.out, AllOf(HasSubstr("6 steps are done, of 7"), Not(HasSubstr("--lr 0"))));
  const Finished heads = run_from(saved, {"--heads", "2"});
  EXPECT_EQ(heads.exit_code, 1);
  EXPECT_THAT(heads.err, HasSubstr("it was saved with --heads 4 (here 2)"));
}

TEST(PracticeRun, EvaluationAndTextNeedNoTraining) {
  const fs::path saved = fresh("saved"), all = fresh("all.jsonl"), metrics = fresh("eval.jsonl"),
                 logs = fresh("logs");
  const Finished whole = run_train_gpt(settings() + Flags{"--data", data(), "--ranks", "2", "--save",
                                                          saved.string(), "--metrics", all.string(),
                                                          "--log-dir", logs.string(), "--sample", "40"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::string text = whole.out.substr(whole.out.find("generated text\n"));

  const Finished f = run_from(
      saved, {"--eval-only", "--ranks", "2", "--metrics", metrics.string(), "--log-dir", logs.string()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(
      f.out, AllOf(HasSubstr("weights after 6 steps"), HasSubstr("held-out loss "), HasSubstr("perplexity")));
  const auto lines = read_steps(metrics);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["step"], 6);
  EXPECT_EQ(lines[0]["eval_loss"], read_steps(all).back()["eval_loss"]);
  EXPECT_EQ(std::distance(fs::directory_iterator(logs), fs::directory_iterator()), 2)
      << "a file for each run";
  // Weights of no checkpoint of a run, into the same file: what is there stays.
  const fs::path weights = fresh("w.safetensors");
  ASSERT_EQ(run_from(saved, {"--steps", "6", "--quiet", "--export-weights", weights.string()}).exit_code, 0);
  const Finished other =
      run_train_gpt({"--eval-only", "--init-weights", weights.string(), "--ranks", "2", "--dim", "36",
                     "--layers", "2", "--seq", "24", "--batch", "8", "--precision", "bf16", "--data", data(),
                     "--metrics", metrics.string()});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  const auto both = read_steps(metrics);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0], lines[0]);
  EXPECT_EQ(both[1]["eval_loss"], lines[0]["eval_loss"]);

  const Finished same = run_from(saved, {"--sample-only", "--ranks", "2", "--sample", "40", "--quiet"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out.size(), 41u) << "a line break, and the text that follows it";
  std::string shown = "generated text\n  | ";
  for (const char c : same.out)
    shown += c == '\n'                             ? "\n  | "
             : (c >= ' ' && c <= '~') || c == '\t' ? std::string(1, c)
                                                   : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  EXPECT_EQ(shown + "\n", text) << "the text of the run that trained";
  const Flags greedy = {"--sample-only", "--quiet", "--temperature", "0", "--prompt", "the ", "--sample"};
  const Finished longer = run_from(saved, greedy + Flags{"30"}),
                 shorter = run_from(saved, greedy + Flags{"10", "--ranks", "3", "--batch", "3"});
  EXPECT_THAT(longer.out, testing::StartsWith("the "));
  EXPECT_TRUE(longer.out.starts_with(shorter.out)) << longer.out << shorter.out;
  EXPECT_EQ(std::distance(fs::directory_iterator(saved), fs::directory_iterator()), 3) << "nothing was saved";
}

// The reader of a pipe has the first bytes long before the last.
TEST(PracticeRun, TextComesAsItIsMade) {
  const fs::path saved = fresh("saved");
  ASSERT_EQ(run_train_gpt(
                {"--data", data(), "--dim", "32", "--layers", "1", "--steps", "1", "--save", saved.string()})
                .exit_code,
            0);
  const std::string command = std::string(TRAIN_GPT) + " --resume " + saved.string() +
                              " --sample-only --quiet --sample 1000000 | head -c 30 >" +
                              scratch("printed").string();
  EXPECT_EQ(std::system(("timeout 60 sh -c '" + command + "'").c_str()), 0);
  EXPECT_EQ(read_file(scratch("printed")).size(), 30u);
}

std::string tokens_of(const char* name, int factor) {
  const fs::path path = scratch(name);
  std::string bytes;
  for (int i = 0; i < 1500; ++i) bytes += {static_cast<char>('a' + (i * i * factor + i / 7) % 25), '\0'};
  write_file(path, bytes);
  return path.string();
}

TEST(PracticeRun, SetsOfEvaluationDataDecideWhichCheckpointIsKept) {
  const fs::path saved = fresh("saved"), metrics = fresh("m.jsonl"), rest = fresh("rest.jsonl");
  const std::string sets = "web=" + tokens_of("web.bin", 1) + ":3,code=" + tokens_of("code.bin", 3) + ":1";
  const Flags run =
      settings() + Flags{"--data", data(), "--eval-data", sets, "--token-format", "u16", "--eval-every", "1"};
  const Finished f = run_train_gpt(run + Flags{"--ranks", "4", "--save", saved.string(), "--keep", "1",
                                               "--keep-best", "--metrics", metrics.string()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("validation data web, "), HasSubstr(": web "), HasSubstr(", code ")));
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 6u);
  size_t best = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double web = steps[i]["eval_sets"]["web"], code = steps[i]["eval_sets"]["code"],
                 mean = steps[i]["eval_loss"];
    EXPECT_NE(web, code);
    EXPECT_NEAR(mean, 0.75 * web + 0.25 * code, 1e-12);
    if (mean < steps[best]["eval_loss"].get<double>()) best = i;
  }
  const std::string name = fmt::format("step_{:08}", best + 1);
  EXPECT_EQ(read_file(saved / "best"), name + "\n");
  EXPECT_TRUE(fs::exists(saved / name));
  EXPECT_TRUE(fs::exists(saved / "step_00000006"));
  EXPECT_LE(std::distance(fs::directory_iterator(saved), fs::directory_iterator()), 3 + 2)
      << "lock, latest, best";
  // A run from there evaluates the same sets.
  EXPECT_EQ(run_from(saved / name, {"--eval-only", "--ranks", "2", "--metrics", rest.string()}).exit_code, 0);
  const double of_best = steps[best]["eval_loss"];
  EXPECT_NEAR(read_steps(rest)[0]["eval_loss"].get<double>(), of_best, 1e-5 * of_best);
  EXPECT_EQ(read_steps(rest)[0]["eval_sets"].size(), 2u);

  const Finished both = run_train_gpt(run + Flags{"--valid-tokens", "v.bin"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr(": --valid-tokens v.bin is what is evaluated; give one of the two"));
  const Finished alone = run_train_gpt(run + Flags{"--keep-best"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--keep-best: no checkpoint has an evaluation; give --save FOLDER"));
}

// The folder that a model came from is unused once there is a checkpoint.
TEST(PracticeRun, AModelResumesWithoutTheFolderThatItCameFrom) {
  const fs::path saved = fresh("saved"), model = fresh("model"), gone = fresh("gone"),
                 tokens = scratch("tokens.bin"), all = fresh("all.jsonl"), rest = fresh("rest.jsonl"),
                 like = fresh("like"), out = fresh("out");
  fs::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(fs::path(GOLDEN_FOLDER) / "models/llama" / file, model / file);
  write_file(model / "tokenizer.json", "{}");
  std::string bytes;
  for (int i = 0; i < 4000; ++i) bytes += {static_cast<char>((i * i + 7 * (i / 5)) % 190), '\0'};
  write_file(tokens, bytes);
  const Flags ranks = {"--ranks", "2", "--tp", "2", "--threads", "1"};
  const Finished whole = run_train_gpt(ranks + Flags{"--model",
                                                     model.string(),
                                                     "--tokens",
                                                     tokens.string(),
                                                     "--token-format",
                                                     "u16",
                                                     "--seq",
                                                     "15",
                                                     "--batch",
                                                     "3",
                                                     "--sequence-parallel",
                                                     "true",
                                                     "--save-every",
                                                     "2",
                                                     "--save",
                                                     saved.string(),
                                                     "--steps",
                                                     "4",
                                                     "--metrics",
                                                     all.string(),
                                                     "--export-hf",
                                                     like.string()});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  fs::rename(model, gone);
  const Finished f = run_from(saved / "step_00000002",
                              ranks + Flags{"--metrics", rest.string(), "--export-hf", out.string()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("the folder is missing"), HasSubstr("no tokenizer's files")));
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 2) << f.err;
  EXPECT_THAT(f.out, HasSubstr("--sequence-parallel true"));
  auto want = figures(all);
  want.erase(want.begin(), want.begin() + 2);
  EXPECT_EQ(figures(rest), want);
  // The same folder, but for the tokenizer.
  EXPECT_EQ(read_file(out / "config.json"), read_file(like / "config.json"));
  EXPECT_EQ(read_file(out / "model.safetensors"), read_file(like / "model.safetensors"));
  EXPECT_TRUE(fs::exists(like / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(out / "tokenizer.json"));
  // Text that needs no folder either.
  const Finished text =
      run_from(saved, {"--sample-only", "--prompt-tokens", "5,6", "--sample", "3", "--quiet"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

}  // namespace
}  // namespace sherd::test
