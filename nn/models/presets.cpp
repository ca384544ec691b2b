#include <sherd/nn/models/presets.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

namespace sherd::nn {
namespace {

struct Preset {
  const char* name;
  ModelDescription model;
};

// (Radford et al., 2019.)
ModelDescription gpt2(int64_t dim, int64_t layers, int64_t heads) {
  return {.family = ModelFamily::gpt2,
          .vocab = 50257,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = dim / heads,
          .hidden = 4 * dim,
          .positions = 1024,
          .norm_eps = 1e-5f,
          .tied = true,
          .qkv_bias = true,
          .out_bias = true,
          .mlp_bias = true};
}

// Llama 3 (2024); 3.2 with its scaling of angles by 32, and tied.
ModelDescription llama3(int64_t dim, int64_t layers, int64_t heads, int64_t head_dim, int64_t hidden) {
  return {.family = ModelFamily::llama,
          .vocab = 128256,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = head_dim,
          .hidden = hidden,
          .positions = 8192,
          .norm_eps = 1e-5f,
          .rope = {.theta = 500000}};
}
ModelDescription llama3_2(int64_t dim, int64_t layers, int64_t heads, int64_t head_dim) {
  ModelDescription m = llama3(dim, layers, heads, head_dim, 8192);
  m.positions = 131072;
  m.tied = true;
  m.rope.scaling = {.type = RopeType::llama3,
                    .factor = 32,
                    .original_max_position_embeddings = 8192,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4};
  return m;
}

// Version 0.3 (2024), which has no sliding window: the first one's is 4096 positions, and this model would attend
// beyond it.
ModelDescription mistral_7b() {
  return {.family = ModelFamily::mistral,
          .vocab = 32768,
          .dim = 4096,
          .layers = 32,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .hidden = 14336,
          .positions = 32768,
          .norm_eps = 1e-5f,
          .rope = {.theta = 1000000}};
}

ModelDescription qwen2_half_b() {
  return {.family = ModelFamily::qwen2,
          .vocab = 151936,
          .dim = 896,
          .layers = 24,
          .heads = 14,
          .kv_heads = 2,
          .head_dim = 64,
          .hidden = 4864,
          .positions = 32768,
          .norm_eps = 1e-6f,
          .tied = true,
          .qkv_bias = true,
          .rope = {.theta = 1000000}};
}

ModelDescription qwen3(int64_t dim, int64_t layers, int64_t heads, int64_t hidden, bool tied) {
  return {.family = ModelFamily::qwen3,
          .vocab = 151936,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = 128,
          .hidden = hidden,
          .positions = 40960,
          .norm_eps = 1e-6f,
          .tied = tied,
          .qk_norm = true,
          .rope = {.theta = 1000000}};
}

ModelDescription qwen3_30b_a3b() {
  ModelDescription m = qwen3(2048, 48, 32, 6144, false);
  m.family = ModelFamily::qwen3_moe;
  m.kv_heads = 4;
  m.mixture = {.experts = 128, .top_k = 8, .hidden = 768, .normalise = true, .balance = 0.001};
  return m;
}

ModelDescription mixtral_8x7b() {
  ModelDescription m = mistral_7b();
  m.family = ModelFamily::mixtral;
  m.vocab = 32000;
  m.mixture = {.experts = 8, .top_k = 2, .hidden = 14336, .normalise = true, .balance = 0.02};
  return m;
}

// (DeepSeek-AI, 2024, arXiv 2412.19437), without its head for multi-token prediction.
ModelDescription deepseek_v3() {
  return {.family = ModelFamily::deepseek_v3,
          .vocab = 129280,
          .dim = 7168,
          .layers = 61,
          .heads = 128,
          .kv_heads = 128,
          .head_dim = 192,
          .hidden = 18432,
          .positions = 163840,
          .norm_eps = 1e-6f,
          .rope = {.theta = 10000,
                   .scaling = {.type = RopeType::yarn,
                               .factor = 40,
                               .original_max_position_embeddings = 4096,
                               .mscale = 1,
                               .mscale_all_dim = 1}},
          .mixture = {.experts = 256,
                      .top_k = 8,
                      .hidden = 2048,
                      .dense_layers = 3,
                      .shared = 1,
                      .groups = 8,
                      .top_groups = 4,
                      .scaling = 2.5},
          .latent = {.kv_rank = 512, .q_rank = 1536, .nope = 128, .rope = 64, .value = 128}};
}

// (Kimi Team, 2025, arXiv 2507.20534.)
ModelDescription kimi_k2() {
  ModelDescription m = deepseek_v3();
  m.family = ModelFamily::kimi_k2;
  m.vocab = 163840;
  m.heads = m.kv_heads = 64;
  m.positions = 131072;
  m.rope.theta = 50000;
  m.rope.scaling.factor = 32;
  m.rope.scaling.beta_fast = 1;
  m.mixture.experts = 384;
  m.mixture.dense_layers = 1;
  m.mixture.groups = m.mixture.top_groups = 1;
  m.mixture.scaling = 2.827;
  return m;
}

// (OpenAI, 2025, arXiv 2508.10925.) The larger of the two.
ModelDescription gpt_oss_120b() {
  ModelDescription m{.family = ModelFamily::gpt_oss,
                     .vocab = 201088,
                     .dim = 2880,
                     .layers = 36,
                     .heads = 64,
                     .kv_heads = 8,
                     .head_dim = 64,
                     .hidden = 2880,
                     .positions = 131072,
                     .norm_eps = 1e-5f,
                     .qkv_bias = true,
                     .out_bias = true,
                     .rope = {.theta = 150000,
                              .scaling = {.type = RopeType::yarn,
                                          .factor = 32,
                                          .original_max_position_embeddings = 4096,
                                          .truncate = false}},
                     .window = 128,
                     .mixture = {.experts = 128, .top_k = 4, .hidden = 2880}};
  for (int64_t i = 0; i < m.layers; ++i) m.windowed.push_back(i % 2 == 0);
  return m;
}

std::vector<Preset> presets() {
  return {{"gpt2-124m", gpt2(768, 12, 12)},
          {"gpt2-350m", gpt2(1024, 24, 16)},
          {"gpt2-774m", gpt2(1280, 36, 20)},
          {"gpt2-1.5b", gpt2(1600, 48, 25)},
          {"llama3.2-1b", llama3_2(2048, 16, 32, 64)},
          {"llama3.2-3b", llama3_2(3072, 28, 24, 128)},
          {"llama3-8b", llama3(4096, 32, 32, 128, 14336)},
          {"llama3-70b", llama3(8192, 80, 64, 128, 28672)},
          {"llama3-405b", llama3(16384, 126, 128, 128, 53248)},
          {"mistral-7b", mistral_7b()},
          {"qwen2-0.5b", qwen2_half_b()},
          {"qwen3-0.6b", qwen3(1024, 28, 16, 3072, true)},
          {"qwen3-1.7b", qwen3(2048, 28, 16, 6144, true)},
          {"qwen3-8b", qwen3(4096, 36, 32, 12288, false)},
          {"qwen3-30b-a3b", qwen3_30b_a3b()},
          {"mixtral-8x7b", mixtral_8x7b()},
          {"deepseek-v3", deepseek_v3()},
          {"kimi-k2", kimi_k2()},
          {"gpt-oss-120b", gpt_oss_120b()}};
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : presets()) names.emplace_back(p.name);
  return names;
}

ModelDescription preset(std::string_view name) {
  for (const Preset& p : presets())
    if (p.name == name) return p.model;
  throw InvalidArgument(
      fmt::format("preset '{}' is unknown; use one of {}", name, fmt::join(preset_names(), ", ")));
}

}  // namespace sherd::nn
