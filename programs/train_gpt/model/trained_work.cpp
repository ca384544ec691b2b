#include "train_gpt/model/trained_work.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include <sherd/nn/models/lora.h>

#include "train_gpt/model/model_source.h"

namespace train_gpt {
namespace {

namespace nn = sherd::nn;

// "model.layers.3.mlp.up_proj.weight": 3; -1 outside of blocks.
int64_t block_of(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int64_t block = -1;
    const auto [at, error] = std::from_chars(name.data() + begin, name.data() + end, block);
    if (error == std::errc() && at == name.data() + end) return block;
    begin = end + 1;
  }
  return -1;
}

// A table whose rows are looked up; a tied one is the head, too.
bool is_table(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight") ||
         name.ends_with("tok.weight");
}

bool is_matrix(std::string_view name, const sherd::Parameter& p, bool tied) {
  return p.global_shape().size() >= 2 && name.ends_with(".weight") && !name.ends_with("wpe.weight") &&
         !name.ends_with("pos.weight") && (tied || !is_table(name));
}

// The head, which is tied to a table or not, of a parameter that is_matrix().
bool is_head(std::string_view name) { return name.ends_with("head.weight") || is_table(name); }

// Elements that a token meets.
int64_t active_elements(const sherd::Parameter& p, const TrainConfig& c) {
  const int64_t all = sherd::numel_of(p.global_shape());
  const bool of_experts = c.experts > 0 && p.tensor_shard() && p.tensor_shard()->mesh_dim == "expert";
  return of_experts ? all / c.experts * c.expert_top_k : all;
}

}  // namespace

ParameterCount count_parameters(const TrainConfig& c, const nn::CausalModel& model) {
  ParameterCount count;
  for (const auto& [name, p] : model.named_parameters()) {
    const int64_t elements = sherd::numel_of(p.global_shape());
    count.all += elements;
    count.active += active_elements(p, c);
    if (p.trainable()) count.trained += elements;
  }
  return count;
}

sherd::TokenWork trained_work(const TrainConfig& c, nn::CausalModel& model) {
  sherd::TokenWork work = token_work(c);
  const nn::ModelDescription d = description_of(c);
  const auto blocks = static_cast<int64_t>(model.blocks());
  // Gradients of inputs end with the first block that has a trained parameter.
  int64_t first = blocks;
  for (const auto& [name, p] : model.named_parameters())
    if (p.trainable()) {
      const bool before = block_of(name) < 0 &&
                          (is_table(name) || name.ends_with("wpe.weight") || name.ends_with("pos.weight"));
      if (before) first = 0;
      if (block_of(name) >= 0) first = std::min(first, block_of(name));
    }
  for (const auto& [name, p] : model.named_parameters()) {
    if (!is_matrix(name, p, d.tied)) continue;
    // Multi-token prediction uses the head once more.
    const int64_t elements = active_elements(p, c) * (is_head(name) ? 1 + d.mtp_layers : 1);
    if (nn::is_adapter(name)) work.weights += elements;
    if (p.trainable()) continue;
    work.frozen += elements;
    if (block_of(name) >= 0 && block_of(name) < first) work.ahead += elements;
  }
  const auto windowed = [&](int64_t end) {
    int64_t count = 0;
    for (int64_t i = 0; i < end; ++i) count += d.has_window(i);
    return count;
  };
  const int64_t windows = windowed(blocks), windows_ahead = windowed(first);
  if (blocks > windows)
    work.attention_ahead = work.attention_width / (blocks - windows) * (first - windows_ahead);
  if (windows > 0) work.window_ahead = work.window_width / windows * windows_ahead;
  return work;
}

}  // namespace train_gpt
