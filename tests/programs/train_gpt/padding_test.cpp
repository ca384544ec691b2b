// Padding behind examples trains nothing: what a run learns does not depend on --seq.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>

#include "example_files.h"
#include "parse_flags.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/run/windows.h"

namespace train_gpt {
namespace {

using Flags = std::vector<std::string>;
using Values = std::map<std::string, std::vector<float>>;

constexpr int32_t kPlaces = 10;  // of the longest example

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Padding : testing::Test {
  Padding() {
    // Examples of 2 to 11 tokens; every third one ends with context.
    std::vector<std::vector<int32_t>> examples;
    for (int32_t e = 0; e < 24; ++e) {
      examples.emplace_back();
      const int32_t length = 2 + e * 7 % kPlaces, end = length - (e % 3 == 0 && length > 4 ? 2 : 0);
      for (int32_t t = 0; t < length; ++t) {
        const int32_t token = 1 + (e * e + 7 * t) % 190;
        examples.back().push_back(t < length / 3 + 1 || t >= end ? -1 - token : token);
      }
    }
    write_examples(folder.path() / "examples", examples);
  }

  /// A family's small shape, with first weights of which scores and loads are uneven, and a head for multi-token prediction.
  Flags model(const std::string& family) {
    auto config = nlohmann::json::parse(
        std::ifstream(std::string(GOLDEN_FOLDER) + "/models/" + family + "/config.json"));
    config["initializer_range"] = 0.3;
    if (config.contains("num_nextn_predict_layers")) config["num_nextn_predict_layers"] = 1;
    folder.write(family + "/config.json", config.dump());
    return {"--model", folder / family, "--from-scratch"};
  }

  struct Trained {
    std::vector<double> losses, norms;
    Values values;  // whole parameters and buffers
  };
  /// AdamW's eps is some 1 % of a gradient, so that a gradient of rounding moves nothing.
  Trained train(const Flags& flags, int64_t seq) {
    const TrainConfig config = parse(Flags{"--sft", folder / "examples", "--order", "sequential", "--seq",
                                           std::to_string(seq), "--batch", "8", "--steps", "4", "--lr",
                                           "0.02", "--warmup", "0", "--adam-eps", "1e-3", "--quiet"} +
                                     flags);
    const auto windows = open_windows(config);
    Trained all;
    std::mutex mutex;
    const sherd::LaunchOptions options = {
        .device = {.kernels = sherd::parse_cpu_kernels(TEST_KERNELS), .threads = 1}};
    sherd::launch(static_cast<int>(config.ranks), options, [&](sherd::RankContext& rank) {
      Trainer trainer(rank, config, windows);
      for (int64_t step = 0; step < config.steps; ++step) {
        const sherd::StepResult r = trainer.train_step();
        const std::lock_guard lock(mutex);
        if (rank.world->rank() != 0) continue;
        all.losses.push_back(r.loss);
        all.norms.push_back(r.grad_norm);
      }
      const sherd::SavedRun run = trainer.saved_run();
      sherd::Stream& s = rank.device->compute();
      for (auto& [name, p] : run.model.named_parameters()) {
        const std::vector<float> mine = sherd::ops::to_floats(s, p.shard());
        const std::lock_guard lock(mutex);
        auto& whole = all.values[name];
        whole.resize(static_cast<size_t>(sherd::numel_of(p.global_shape())));
        size_t at = 0;
        for (const sherd::GlobalRun& part : p.global_runs(p.shard_range()))
          for (int64_t i = 0; i < part.count; ++i)
            whole[static_cast<size_t>(part.global.value + i)] = mine[at++];
      }
      for (auto& [name, b] : run.model.named_buffers()) {
        const std::vector<float> mine = sherd::ops::to_floats(s, b.data());
        const std::lock_guard lock(mutex);
        all.values[name] = mine;
      }
    });
    return all;
  }

  /// Rows without padding are summed in other blocks: 2e-5 of the largest value, for 4 steps of sums of up to 200 rows in
  /// f32. Selection biases have the same bits.
  void expect_same(const Trained& got, const Trained& want, const std::string& what) {
    ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 2e-6 * want.losses[i]) << what << ", step " << i + 1;
      EXPECT_NEAR(got.norms[i], want.norms[i], 2e-5 * want.norms[i]) << what << ", step " << i + 1;
    }
    ASSERT_EQ(got.values.size(), want.values.size()) << what;
    for (const auto& [name, values] : want.values) {
      // Learned positions are as many as a row has.
      const std::vector<float>& others = got.values.at(name);
      double most = 0, largest = 0;
      for (size_t i = 0; i < std::min(values.size(), others.size()); ++i) {
        most = std::max(most, std::abs(double{others[i]} - double{values[i]}));
        largest = std::max(largest, std::abs(double{values[i]}));
      }
      EXPECT_LE(most, name.ends_with("correction_bias") ? 0 : 2e-5 * largest) << what << ", " << name;
    }
  }
  void expect_the_same_at_any_length(const Flags& flags) {
    const Trained want = train(flags, kPlaces);
    for (const int64_t seq : {kPlaces + 3, 3 * kPlaces + 1})
      expect_same(train(flags, seq), want, testing::PrintToString(flags) + ", seq " + std::to_string(seq));
  }

  const TemporaryFolder folder;
};

const Flags kOneRank{}, kAccumulated{"--grad-accum", "2", "--recompute", "blocks"},
    kTensorParallel{"--ranks", "4", "--tp", "2"},
    kContextParallel{"--ranks", "4", "--context", "2", "--recompute", "blocks"},
    kSequenceParallel{"--ranks", "4", "--tp", "2", "--sequence-parallel", "true", "--grad-accum", "2"};

TEST_F(Padding, IsNotALogitThatQkClipClips) {
  for (const std::string family : {"llama", "mistral", "deepseek_v3"}) {
    const Flags clip = model(family) + Flags{"--qk-clip", "0.5"};
    const Trained clipped = train(clip, kPlaces), free = train(model(family), kPlaces);
    EXPECT_NE(clipped.losses.back(), free.losses.back()) << family << ": nothing is clipped";
    for (const Flags& ranks : {kOneRank, kAccumulated, kSequenceParallel})
      expect_the_same_at_any_length(clip + ranks);
    expect_the_same_at_any_length(clip + Flags{"--optimizer", "muon"});
    if (family != "mistral") expect_the_same_at_any_length(clip + kContextParallel);  // it has one key head
  }
  expect_the_same_at_any_length(Flags{"--dim", "16", "--layers", "1", "--heads", "2", "--qk-clip", "1e-3"});
}

TEST_F(Padding, IsNotALoadOfExperts) {
  for (const Flags& ranks : {kOneRank, kAccumulated, kTensorParallel + Flags{"--expert-parallel", "2"},
                             kContextParallel + Flags{"--expert-parallel", "2"},
                             kSequenceParallel + Flags{"--expert-parallel", "4", "--recompute", "blocks"}}) {
    expect_the_same_at_any_length(model("qwen3_moe") + Flags{"--moe-aux", "0.5"} + ranks);
    for (const std::string family : {"deepseek_v3", "glm4_moe"})
      expect_the_same_at_any_length(model(family) + Flags{"--moe-aux", "0.5", "--moe-bias-speed", "0.01"} +
                                    ranks);
  }
  expect_the_same_at_any_length(Flags{"--dim", "16", "--layers", "2", "--heads", "2", "--experts", "4",
                                      "--moe-aux", "0.5", "--ranks", "2", "--expert-parallel", "2"});
}

TEST_F(Padding, DoesNotReachTheHeadForMultiTokenPrediction) {
  const Flags mtp{"--moe-aux", "0.5", "--moe-bias-speed", "0.01", "--mtp-weight", "0.3"};
  for (const Flags& ranks :
       {kOneRank, kSequenceParallel + Flags{"--expert-parallel", "2"}, kContextParallel}) {
    expect_the_same_at_any_length(model("deepseek_v3") + mtp + Flags{"--qk-clip", "0.5"} + ranks);
    expect_the_same_at_any_length(model("glm4_moe") + mtp + ranks);
  }
}

TEST_F(Padding, DoesNotReachAdapters) {
  for (const std::string family : {"deepseek_v3", "qwen3_moe"})
    expect_the_same_at_any_length(
        model(family) + Flags{"--moe-aux", "0.5", "--lora-rank", "2", "--lora-targets", "self_attn"} +
        kTensorParallel);
}

}  // namespace
}  // namespace train_gpt
