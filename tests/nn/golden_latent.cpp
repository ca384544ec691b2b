// Latent attention with its projections, by the names of latent.json's cases.
#include "golden_cases.h"

namespace sherd::test {
namespace {

using nn::Var;

constexpr int64_t kLatentBatch = 2;  // as in make_latent.py
constexpr double kLatentTheta = 100;

struct LatentCase {
  LatentHeads heads{};
  int64_t q_rank = 0, kv_rank = 0;
  bool bias = false;
  RopeScaling scaling{};
};

/// The computation of LatentSelfAttention, without ranks and adapters. Parameters in the file's order.
std::vector<Var> latent_block(const LatentCase& c, const GoldenArguments& a) {
  size_t next = 0;
  const auto weight = [&] { return a.w.at(next++); };
  const auto product = [&](const Var& x, bool bias) {
    const Parameter w = weight();
    return nn::linear(x, w, bias ? weight() : Parameter());
  };
  Var q = product(a.x[0], c.q_rank > 0 && c.bias);
  if (c.q_rank > 0) {
    q = nn::rms_norm(q, weight(), 1e-6f);
    q = product(q, false);
  }
  const std::vector<Var> compressed = nn::split_columns(product(a.x[0], c.bias), {c.kv_rank, c.heads.rope});
  const Var latent = nn::rms_norm(compressed[0], weight(), 1e-6f);
  const Var kv = product(latent, false);
  nn::LatentAttentionOptions options{.heads = c.heads};
  options.heads.batch = kLatentBatch;
  const std::vector<float> frequencies = ops::rope_frequencies(c.heads.rope, kLatentTheta, c.scaling);
  options.heads.rotation_scale = static_cast<float>(c.scaling.rotation_scale());
  options.score_scale = static_cast<float>(c.scaling.score_scale());
  const Var seen =
      nn::latent_attention(q, kv, compressed[1], nn::rope_table(q.device(), frequencies), options);
  return {product(seen, c.bias)};
}

GoldenFunction latent_case(const LatentCase& c) {
  return [c](const GoldenArguments& a) { return latent_block(c, a); };
}

}  // namespace

const GoldenTable& latent_functions() {
  static const GoldenTable all = {
      {"latent_attention_yarn", latent_case({.heads = {.heads = 3, .nope = 2, .rope = 4, .value = 5},
                                             .q_rank = 5,
                                             .kv_rank = 4,
                                             .bias = true,
                                             .scaling = {.type = RopeType::yarn,
                                                         .factor = 4,
                                                         .original_max_position_embeddings = 16,
                                                         .beta_fast = 4,
                                                         .beta_slow = 1,
                                                         .mscale = 0.75,
                                                         .mscale_all_dim = 0.5}})},
      {"latent_attention_wide_values",
       latent_case({.heads = {.heads = 2, .nope = 1, .rope = 2, .value = 6}, .q_rank = 3, .kv_rank = 5})},
      {"latent_attention_halves",
       latent_case(
           {.heads = {.heads = 2, .nope = 3, .rope = 4, .value = 2, .interleaved = false}, .kv_rank = 3})},
  };
  return all;
}

}  // namespace sherd::test
