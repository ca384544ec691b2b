// Whole runs with context parallelism: losses of context 1 to rounding, the same bits whatever is sharded, data and evaluation,
// examples, stops and resumes on other ranks, refusals.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "example_files.h"
#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

/// An eps of some 1 % of gradients: gradients of rounding move nothing.
const Flags kSliced = {"--steps", "10", "--dim",   "48", "--layers", "2", "--heads",    "4",
                       "--seq",   "23", "--batch", "8",  "--seed",   "5", "--adam-eps", "1e-3"};

Outcome sliced(const Flags& extra) { return train_quietly(kSliced + extra); }

const std::vector<Flags> kContexts = {{"--ranks", "2", "--context", "2"},
                                      {"--ranks", "4", "--context", "4"},
                                      {"--ranks", "4", "--context", "2"},
                                      {"--ranks", "8", "--context", "2", "--replicas", "2"},
                                      {"--ranks", "4", "--context", "2", "--tp", "2"}};

TEST(ContextRun, LossesAreThoseOfOneRankAndStrategiesAgreeInBits) {
  const Outcome one = sliced({});
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Flags& ranks : kContexts) {
    const Outcome want = sliced(ranks + Flags{"--strategy", "no_shard"});
    expect_close_losses(want, one, 1e-5, show(ranks));
    for (size_t i = 0; i < one.norms.size(); ++i)
      EXPECT_NEAR(want.norms[i], one.norms[i], 1e-4 * one.norms[i]) << show(ranks) << i;
    for (const char* layout : {"ragged", "even_rows"})
      for (auto& strategy : kStrategies) {
        if (!nightly() && (layout[0] == 'e') != (strategy == "optim_grads")) continue;
        const Flags flags = ranks + Flags{"--layout", layout, "--strategy", strategy};
        EXPECT_TRUE(sliced(flags) == want) << show(flags);
      }
    EXPECT_TRUE(sliced(ranks + Flags{"--recompute", "blocks", "--prefetch", "0"}) == want) << show(ranks);
  }
  EXPECT_TRUE(sliced(kContexts[3]) == sliced({"--ranks", "8", "--context", "2"})) << "replicas change no bit";
  EXPECT_TRUE(sliced(kContexts[3] + Flags{"--outer", "optim"}) == sliced(kContexts[3]));
}

TEST(ContextRun, AccumulationGuardsAndExperts) {
  const Outcome one = sliced({});
  for (const Flags& more : {Flags{"--grad-accum", "2"}, Flags{"--grad-accum", "2", "--strategy", "optim"},
                            Flags{"--check-replicas", "2", "--strategy", "no_shard", "--verify-step", "2"}})
    expect_close_losses(sliced(kContexts[2] + more), one, 1e-5, show(more));
  const Flags experts = {"--experts", "4"};
  const Outcome routed = sliced(experts);
  for (const Flags& ranks : {kContexts[0], kContexts[1], kContexts[2] + Flags{"--expert-parallel", "2"},
                             kContexts[4] + Flags{"--expert-parallel", "4"}})
    expect_close_losses(sliced(experts + ranks), routed, 1e-4, show(ranks));
}

TEST(ContextRun, OptimizersStayNearOneRankAndStrategiesAgreeInBits) {
  for (const char* optimizer : {"muon", "normuon", "soap"}) {
    const Flags flags = {"--optimizer", optimizer};
    const Outcome one = sliced(flags), want = sliced(flags + kContexts[2] + Flags{"--strategy", "no_shard"});
    // SOAP's bases turn with rounding: losses of data-parallel ranks differ by up to 6e-4, too.
    expect_close_losses(want, one, optimizer == std::string("soap") ? 5e-3 : 1e-4, optimizer);
    for (const Flags& other :
         {Flags{"--strategy", "optim", "--layout", "whole_param"}, Flags{"--strategy", "optim_grads"},
          Flags{"--strategy", "optim_grads_params"}, Flags{"--replicas", "2"}})
      EXPECT_TRUE(sliced(flags + kContexts[2] + other) == want) << optimizer << " " << show(other);
  }
}

TEST(ContextRun, FormsOfWeightsAveragesAndOffloadAgreeInBits) {
  const Flags offload = {"--offload",        "state,master",
                         "--offload-folder", scratch("").parent_path().string(),
                         "--offload-window", "16K"};
  for (const Flags& form :
       {Flags{"--precision", "bf16"},
        Flags{"--precision", "bf16", "--master", "bf16", "--state-dtype", "bf16"},
        Flags{"--precision", "bf16", "--master", "split", "--optimizer", "muon"}, Flags{"--ema", "0.5"}}) {
    const Flags flags = form + kContexts[2];
    const Outcome want = sliced(flags + Flags{"--strategy", "no_shard"});
    expect_close_losses(want, sliced(form), form[0] == "--ema" ? 1e-5 : 0.02, show(form));
    for (const Flags& other : {Flags{"--strategy", "optim"}, Flags{"--strategy", "optim_grads_params"}})
      EXPECT_TRUE(sliced(flags + other) == want) << show(flags + other);
    if (form.size() == 2 && form[0] == "--precision") {
      EXPECT_TRUE(sliced(flags + offload) == want) << show(flags);
    }
  }
}

/// Numbers of a run's metrics, in this order of steps.
std::vector<double> metric(const Flags& flags, const char* name) {
  const auto data = scratch("text"), metrics = fresh("metrics");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt(flags + Flags{"--data", data.string(), "--metrics", metrics.string(), "--quiet"});
  EXPECT_EQ(f.exit_code, 0) << show(flags) << f.err;
  std::vector<double> all;
  for (auto& step : read_steps(metrics))
    if (step.contains(name)) all.push_back(step[name]);
  return all;
}

// The ranks do not divide 7 windows.
TEST(ContextRun, EvaluationIsThatOfOneRank) {
  const Flags evaluated = kSliced + Flags{"--eval-every", "5", "--eval-windows", "7", "--ema", "0.9"};
  for (const char* name : {"eval_loss", "eval_loss_ema"}) {
    const std::vector<double> want = metric(evaluated, name);
    ASSERT_EQ(want.size(), 2u);
    for (const Flags& ranks : kContexts) {
      const std::vector<double> got = metric(evaluated + ranks, name);
      ASSERT_EQ(got.size(), 2u);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << name << show(ranks);
    }
  }
}

TEST(ContextRun, SaysItsMesh) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f = run_train_gpt(kSliced + Flags{"--data", data.string(), "--steps", "1", "--ranks", "8",
                                                   "--replicas", "2", "--context", "2", "--tp", "2"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("mesh replicate 2 x shard 1 x context 2 x tp 2;"));
}

/// Steps behind the first `count`.
Outcome behind(Outcome run, size_t count) {
  for (auto* values : {&run.losses, &run.norms})
    values->erase(values->begin(), values->begin() + static_cast<std::ptrdiff_t>(count));
  run.zeros.erase(run.zeros.begin(), run.zeros.begin() + static_cast<std::ptrdiff_t>(count));
  return run;
}

TEST(ContextRun, StopsAndResumesInBitsAndOnOtherRanks) {
  for (const Flags& optimizer : {Flags{"--optimizer", "adamw"}, Flags{"--optimizer", "muon"}}) {
    const fs::path folder = fresh("saved");
    const Flags common = kSliced + optimizer;
    const Outcome whole = train_quietly(common + kContexts[2]), want = behind(whole, 6);
    train_quietly(common + kContexts[2] + Flags{"--stop-at", "6", "--save", folder.string()});
    const auto resumed = [&](const Flags& ranks) {
      return train_quietly(common + ranks + Flags{"--resume", folder.string()});
    };
    EXPECT_TRUE(resumed(kContexts[2]) == want);
    EXPECT_TRUE(resumed(kContexts[2] + Flags{"--strategy", "optim", "--layout", "whole_param"}) == want);
    EXPECT_TRUE(resumed(kContexts[2] + Flags{"--replicas", "2", "--recompute", "blocks"}) == want);
    for (const Flags& ranks : {Flags{"--ranks", "1"}, Flags{"--ranks", "2", "--tp", "2"},
                               Flags{"--ranks", "4"}, Flags{"--ranks", "4", "--context", "4"}, kContexts[4]})
      expect_close_losses(resumed(ranks), want, 1e-4, "to " + show(ranks));
    for (const Flags& ranks : {Flags{"--ranks", "1"}, Flags{"--ranks", "4", "--tp", "2"},
                               Flags{"--ranks", "4", "--context", "4"}}) {
      fs::remove_all(folder);
      train_quietly(common + ranks + Flags{"--stop-at", "6", "--save", folder.string()});
      expect_close_losses(resumed(kContexts[2]), want, 1e-4, "from " + show(ranks));
    }
  }
}

// Wherever the kill falls, the run resumes at its last checkpoint, with the next sequences.
TEST(ContextRun, KilledRunsResumeInBitsAndOnOtherRanks) {
  const Flags common = kSliced + Flags{"--steps", "200"};
  const Outcome whole = train_quietly(common + kContexts[2]);
  const auto data = scratch("text");
  const Flags tools = {"--data", data.string(), "--quiet"};
  for (const Flags& ranks : {kContexts[2], Flags{"--ranks", "2"}, Flags{"--ranks", "4", "--tp", "2"}}) {
    const fs::path folder = fresh("killed");
    run_train_gpt(common + kContexts[2] + tools + Flags{"--save", folder.string(), "--save-every", "1"},
                  "timeout -s KILL 1");
    if (!fs::exists(folder) || fs::is_empty(folder)) continue;  // killed before its first step
    const Outcome rest = train_quietly(common + ranks + Flags{"--resume", folder.string()});
    const Outcome want = behind(whole, whole.losses.size() - rest.losses.size());
    expect_close_losses(rest, want, 1e-4, show(ranks));
    if (ranks == kContexts[2]) {
      EXPECT_TRUE(rest == want);
    }
  }
}

TEST(ContextRun, SettingsOfACheckpointAreThoseOfItsRanks) {
  const fs::path folder = fresh("saved");
  train_quietly(kSliced + kContexts[0] + Flags{"--stop-at", "4", "--save", folder.string()});
  const Finished alone = run_train_gpt({"--resume", folder.string(), "--quiet"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  const Finished sampled =
      run_train_gpt({"--resume", folder.string(), "--sample-only", "--sample", "8", "--quiet"});
  EXPECT_EQ(sampled.exit_code, 0) << sampled.err;
}

// Folders of models, examples and multi-token prediction.

struct Examples {
  Examples() {
    std::vector<std::vector<int32_t>> examples;
    for (int32_t e = 0; e < 40; ++e) {
      examples.emplace_back();
      const int32_t length = 2 + e * 7 % 19, end = length - (e % 3 == 0 && length > 4 ? 2 : 0);
      for (int32_t t = 0; t < length; ++t) {
        const int32_t token = 1 + (e * e + 7 * t) % 190;
        examples.back().push_back(t < length / 3 + 1 || t >= end ? -1 - token : token);
      }
    }
    write_examples(scratch("examples"), examples);
  }
  /// A family's small shape, with a head for multi-token prediction.
  static Flags model(const std::string& family) {
    auto config =
        nlohmann::json::parse(read_file(fs::path(GOLDEN_FOLDER) / "models" / family / "config.json"));
    config["initializer_range"] = 0.2;
    if (config.contains("num_nextn_predict_layers")) config["num_nextn_predict_layers"] = 1;
    fs::create_directories(scratch(family));
    write_file(scratch(family) / "config.json", config.dump());
    return {"--model", scratch(family).string(), "--from-scratch"};
  }
  static Flags flags() {
    return {"--sft",          scratch("examples").string(),
            "--order",        "sequential",
            "--seq",          "23",
            "--batch",        "8",
            "--steps",        "6",
            "--lr",           "3e-3",
            "--adam-eps",     "1e-3",
            "--measure-peak", "false"};
  }
  static Outcome train(const Flags& more) {
    const fs::path metrics = fresh("metrics"), weights = scratch("weights");
    const Finished f =
        run_train_gpt(flags() + more +
                      Flags{"--metrics", metrics.string(), "--export-weights", weights.string(), "--quiet"});
    EXPECT_EQ(f.exit_code, 0) << show(more) << f.err;
    Outcome run;
    for (auto& step : read_steps(metrics)) {
      run.losses.push_back(step["loss"]);
      run.norms.push_back(step["grad_norm"]);
      if (step.contains("mtp_loss")) run.losses.push_back(step["mtp_loss"]);
    }
    run.weights = read_file(weights);
    return run;
  }
};

TEST(ContextRun, ExamplesTrainAsOnOneRank) {
  const Examples examples;
  for (const std::string family : {"gpt2", "llama", "deepseek_v3", "gpt_oss"})
    for (const bool packed : {false, true}) {
      if (packed && family == "gpt2") continue;
      Flags common = examples.model(family);
      if (packed) common.push_back("--packing");
      if (family == "deepseek_v3")
        common = common + Flags{"--mtp-weight", "0.3", "--moe-bias-speed", "0.001"};
      if (family == "llama") common = common + Flags{"--optimizer", "muon", "--qk-clip", "0.05"};
      const Outcome one = examples.train(common);
      EXPECT_EQ(one.losses.size(), family == "deepseek_v3" ? 12u : 6u);
      const Flags two = common + Flags{"--ranks", "4", "--context", "2"};
      const Outcome want = examples.train(two + Flags{"--strategy", "no_shard"});
      const double tolerance = family == "llama" ? 1e-4 : 1e-5;  // of Muon
      expect_close_losses(want, one, tolerance, family);
      EXPECT_TRUE(examples.train(two + Flags{"--recompute", "blocks", "--grad-accum", "1"}) == want)
          << family;
      expect_close_losses(
          examples.train(common + Flags{"--ranks", "4", "--context", "2", "--grad-accum", "2"}), one,
          tolerance, family);
      if (family != "gpt2" && family != "deepseek_v3") continue;
      const Flags beside = {"--ranks", "4", "--context", "2", "--tp", "2", "--sequence-parallel", "true"};
      expect_close_losses(examples.train(common + beside), one, tolerance, family + " beside tp");
    }
}

TEST(ContextRun, ExamplesAreResumedOnOtherRanks) {
  const Examples examples;
  const fs::path folder = fresh("saved");
  const Flags common = examples.model("deepseek_v3") + Flags{"--packing", "--mtp-weight", "0.3"},
              two = {"--ranks", "4", "--context", "2"};
  const Outcome whole = examples.train(common + two);
  examples.train(common + two + Flags{"--stop-at", "3", "--save", folder.string()});
  const auto resumed = [&](const Flags& ranks) {
    return examples.train(common + ranks + Flags{"--resume", folder.string()});
  };
  EXPECT_EQ(resumed(two + Flags{"--strategy", "optim_grads"}).weights, whole.weights);
  Outcome want = whole;
  want.losses.erase(want.losses.begin(), want.losses.begin() + 6);
  for (const Flags& ranks :
       {Flags{"--ranks", "1"}, Flags{"--ranks", "4", "--tp", "2", "--expert-parallel", "2"}})
    expect_close_losses(resumed(ranks), want, 1e-5, show(ranks));
}

TEST(ContextRun, WhatCannotRunIsRefusedInOneLine) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const auto refused = [&](const Flags& flags, std::ptrdiff_t problems = 1) {
    const Finished f = run_train_gpt(kSliced + Flags{"--data", data.string()} + flags);
    EXPECT_EQ(f.exit_code, 2) << show(flags) << f.err;
    EXPECT_EQ(std::ranges::count(f.err, '\n'), 1 + problems) << "a heading and a line each: " << f.err;
    return f.err;
  };
  EXPECT_THAT(refused({"--ranks", "3", "--context", "3"}),
              HasSubstr("--context 3: must divide the 4 heads of each rank"));
  EXPECT_THAT(refused({"--ranks", "8", "--context", "4", "--tp", "2"}),
              HasSubstr("--context 4: must divide the 2 heads of each rank (--heads 4 / --tp 2)"));
  EXPECT_THAT(refused({"--ranks", "3", "--context", "2"}), HasSubstr("--context 2: must divide --ranks 3"));
  EXPECT_THAT(refused({"--ranks", "4", "--context", "4", "--tp", "2"}, 2),
              HasSubstr("--context 4 x --tp 2 = 8: must divide --ranks 4"));
  EXPECT_THAT(refused({"--ranks", "4", "--context", "2", "--replicas", "4"}),
              HasSubstr("--replicas 4 x --context 2 = 8: must divide --ranks 4"));
  EXPECT_THAT(refused({"--ranks", "4", "--context", "2", "--batch", "9"}),
              HasSubstr("--batch 9: must be a multiple of --ranks 4 / --context 2"));
  EXPECT_THAT(refused({"--ranks", "4", "--context", "4", "--seq", "3"}),
              HasSubstr("--context 4: sequences of --seq 3 have fewer tokens than ranks"));
  EXPECT_THAT(refused({"--ranks", "2", "--context", "2", "--sample", "5"}),
              HasSubstr("--context 2: text is generated from whole sequences; leave --sample out"));
  EXPECT_THAT(refused({"--ranks", "2", "--context", "0"}), HasSubstr("--context 0"));
  const auto tokens = scratch("tokens.bin");
  write_file(tokens, std::string(4000, '\0'));
  const auto of_model = [&](const std::string& family, const Flags& flags) {
    const Finished f = run_train_gpt(Examples::model(family) +
                                     Flags{"--tokens", tokens.string(), "--token-format", "u16", "--seq",
                                           "16", "--batch", "8", "--steps", "1"} +
                                     flags);
    EXPECT_EQ(f.exit_code, 2) << show(flags) << f.err;
    EXPECT_EQ(std::ranges::count(f.err, '\n'), 2) << "a heading and a line: " << f.err;
    return f.err;
  };
  EXPECT_THAT(of_model("llama", {"--ranks", "4", "--context", "4"}),
              HasSubstr("--context 4: must divide the 4 heads and 2 key heads that --model"));
  EXPECT_THAT(of_model("mistral", {"--ranks", "2", "--context", "2"}),
              HasSubstr("must divide the 4 heads and 1 key heads"));
  EXPECT_THAT(of_model("qwen2", {"--ranks", "4", "--context", "2", "--tp", "2"}),
              HasSubstr("must divide the 3 heads that --model"));
}

}  // namespace
}  // namespace sherd::test
