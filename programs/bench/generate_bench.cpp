#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sherd/nn/hf/model_config.h>
#include <sherd/sherd.h>

#include "commands.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct GenerateBench {
  std::string model;
  std::vector<int64_t> batches{1, 4, 16};
  int64_t prompt = 32, tokens = 64;
  int ranks = 1, threads = 2;
  std::string precision = "fp32";
};

/// Greedy texts of a model with random weights, each batch once to warm up and once timed. Every rank makes all of them.
bool run_generate(const GenerateBench& b) {
  const nn::ModelDescription m = hf::read_model_config(std::filesystem::path(b.model)).description;
  LaunchOptions options;
  options.device.threads = b.threads;
  launch(b.ranks, options, [&](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"shard", b.ranks}});
    const FullyShardOptions shard{.compute_dtype = b.precision == "bf16" ? DType::bf16 : DType::f32};
    const auto model = nn::causal_model(m);
    for (size_t i = 0; i < model->blocks(); ++i) fully_shard(model->block(i), mesh, shard);
    fully_shard(*model, mesh, shard, {.seed = 1});
    const Unsharded whole(*model);
    for (const int64_t batch : b.batches) {
      std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(batch));
      for (size_t i = 0; i < prompts.size(); ++i)
        for (int64_t t = 0; t < b.prompt; ++t)
          prompts[i].push_back(static_cast<int32_t>((t * 131 + 17 * static_cast<int64_t>(i)) % m.vocab));
      const auto seconds = [&](int64_t tokens) {
        const auto start = std::chrono::steady_clock::now();
        nn::generate(*model, prompts, {.max_tokens = tokens});
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      };
      seconds(2);
      const double all = seconds(b.tokens);
      if (rank.world->rank() == 0)
        fmt::print("batch {}: {:.1f} tokens/s\n", batch, static_cast<double>(batch * b.tokens) / all);
    }
  });
  return true;
}

}  // namespace

Command generate_command(CLI::App& program) {
  const auto b = std::make_shared<GenerateBench>();
  CLI::App* app =
      program.add_subcommand("generate", "tokens per second of greedy texts, prompts included, by batch");
  app->add_option("--model", b->model, "folder with the config.json of a model; weights are random")
      ->required();
  app->add_option("--batches", b->batches, "texts at a time")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app->add_option("--prompt", b->prompt, "tokens of each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--tokens", b->tokens, "new tokens of each text")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--ranks", b->ranks)->capture_default_str()->check(CLI::Range(1, 64));
  app->add_option("--threads", b->threads, "of each rank")->capture_default_str()->check(CLI::Range(1, 256));
  app->add_option("--precision", b->precision)->capture_default_str()->check(CLI::IsMember({"fp32", "bf16"}));
  return {app, [b] { return run_generate(*b); }};
}

}  // namespace sherd_bench
