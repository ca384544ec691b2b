// A folder of tests/golden/models: a small model as transformers saved it, and what PyTorch makes of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/sherd.h>

namespace sherd::test {

inline constexpr const char* kFamilies[] = {
    "gpt2",  "llama",    "mistral", "qwen2",       "qwen3",   "qwen3_moe",        "mixtral",   "deepseek_v3",
    "olmo2", "glm4_moe", "olmo3",   "gemma3_text", "gpt_oss", "mistral_longrope", "qwen2_yarn"};

inline void add_latent(const nlohmann::json& c, nn::ModelDescription& m) {
  nn::LatentDescription& l = m.latent;
  l = {c.at("kv_lora_rank"),     c.at("q_lora_rank"), c.at("qk_nope_head_dim"),
       c.at("qk_rope_head_dim"), c.at("v_head_dim"),  c.at("rope_interleave")};
  m.head_dim = l.nope + l.rope;
}

inline void add_groups(const nlohmann::json& c, nn::ModelDescription& m) {
  nn::MixtureDescription& x = m.mixture;
  x.experts = c.at("n_routed_experts"), x.top_k = c.at("num_experts_per_tok");
  x.hidden = c.at("moe_intermediate_size"), x.normalise = c.at("norm_topk_prob");
  x.dense_layers = c.at("first_k_dense_replace"), x.shared = c.at("n_shared_experts");
  x.groups = c.at("n_group"), x.top_groups = c.at("topk_group"), x.scaling = c.at("routed_scaling_factor");
}

inline nn::RopeDescription rope_of(const nlohmann::json& c) {
  nn::RopeDescription r{.theta = c.at("rope_theta")};
  RopeScaling& s = r.scaling;
  for (const RopeType type :
       {RopeType::linear, RopeType::dynamic, RopeType::llama3, RopeType::yarn, RopeType::longrope})
    if (to_string(type) == c.at("rope_type")) s.type = type;
  s.original_max_position_embeddings = c.value("original_max_position_embeddings", int64_t{0});
  s.truncate = c.value("truncate", true);
  for (const auto& [key, value] : {std::pair{"factor", &s.factor},
                                   {"low_freq_factor", &s.low_freq_factor},
                                   {"high_freq_factor", &s.high_freq_factor},
                                   {"beta_fast", &s.beta_fast},
                                   {"beta_slow", &s.beta_slow},
                                   {"mscale", &s.mscale},
                                   {"mscale_all_dim", &s.mscale_all_dim},
                                   {"attention_factor", &s.attention_factor}})
    *value = c.value(key, *value);
  s.short_factor = c.value("short_factor", s.short_factor);
  s.long_factor = c.value("long_factor", s.long_factor);
  return r;
}

inline void add_windows(const nlohmann::json& c, nn::ModelDescription& m) {
  if (!c.contains("sliding_window") || c.at("sliding_window").is_null()) return;
  m.window = c.at("sliding_window");
  m.windowed.assign(static_cast<size_t>(m.layers), true);
  if (c.contains("layer_types"))
    for (size_t i = 0; i < m.windowed.size(); ++i)
      m.windowed[i] = c.at("layer_types").at(i) == "sliding_attention";
}

/// Reads the parts of config.json that the tests need; programs read it with refusals.
inline nn::ModelDescription description_of(const nlohmann::json& c) {
  using nn::ModelFamily;
  nn::ModelDescription m;
  const std::string type = c.at("model_type");
  for (ModelFamily f = ModelFamily::gpt2; f <= ModelFamily::gpt_oss;
       f = static_cast<ModelFamily>(static_cast<int>(f) + 1))
    if (to_string(f) == type) m.family = f;
  m.vocab = c.at("vocab_size");
  if (m.family == ModelFamily::gpt2) {
    m.dim = c.at("n_embd"), m.layers = c.at("n_layer"), m.heads = m.kv_heads = c.at("n_head");
    m.head_dim = m.dim / m.heads, m.hidden = c.at("n_inner"), m.positions = c.at("n_positions");
    m.norm_eps = c.at("layer_norm_epsilon");
    m.tied = m.qkv_bias = m.out_bias = m.mlp_bias = true;
    return m;
  }
  m.dim = c.at("hidden_size"), m.layers = c.at("num_hidden_layers"), m.heads = c.at("num_attention_heads");
  m.kv_heads = c.at("num_key_value_heads"), m.hidden = c.at("intermediate_size");
  m.head_dim = c.contains("head_dim") ? c.at("head_dim").get<int64_t>() : m.dim / m.heads;
  m.positions = c.at("max_position_embeddings"), m.norm_eps = c.at("rms_norm_eps");
  m.tied = c.at("tie_word_embeddings");
  m.qkv_bias = m.family == ModelFamily::qwen2 || c.value("attention_bias", false);
  m.out_bias = c.value("attention_bias", false), m.mlp_bias = c.value("mlp_bias", false);
  m.qk_norm =
      m.family == ModelFamily::qwen3 || m.family == ModelFamily::qwen3_moe || is_olmo(m) || is_gemma(m);
  const auto& rope = c.at("rope_parameters");
  const bool by_kind = rope.contains("full_attention");
  m.rope = rope_of(by_kind ? rope.at("full_attention") : rope);
  if (by_kind) m.window_rope = rope_of(rope.at("sliding_attention"));
  m.query_scalar = c.value("query_pre_attn_scalar", 0.0);
  add_windows(c, m);
  if (is_deepseek(m)) add_latent(c, m);
  if (routes_in_groups(m)) add_groups(c, m);
  if (m.family == ModelFamily::glm4_moe) {
    m.out_bias = false, m.qk_norm = c.at("use_qk_norm");
    m.rope.columns = static_cast<int64_t>(rope.at("partial_rotary_factor").get<double>() *
                                          static_cast<double>(m.head_dim));
  }
  if (!c.contains("num_local_experts")) return m;
  m.mixture.experts = c.at("num_local_experts"), m.mixture.top_k = c.at("num_experts_per_tok");
  m.mixture.hidden = c.value("moe_intermediate_size", m.hidden);
  m.mixture.normalise = c.value("norm_topk_prob", true);  // of mixtral and gpt_oss always
  return m;
}

/// train_gpt's GPT, which has no folder.
inline nn::ModelDescription byte_gpt(int64_t experts = 0) {
  return {.family = nn::ModelFamily::byte_gpt,
          .vocab = 256,
          .dim = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .hidden = 96,
          .positions = 10,
          .mixture = {.experts = experts, .top_k = 2, .hidden = 96, .balance = 0.01}};
}

struct GoldenFolder {
  explicit GoldenFolder(const std::string& family)
      : path(std::filesystem::path(GOLDEN_FOLDER) / "models" / family),
        expected(json("expected.json")),
        description(description_of(json("config.json"))) {}

  nlohmann::json json(const char* file) const { return nlohmann::json::parse(std::ifstream(path / file)); }
  /// Returns a tensor of expected.safetensors.
  std::vector<float> values(const char* name) const {
    CheckpointReader reader = CheckpointReader::open(path / "expected.safetensors");
    const CheckpointTensor* t = reader.find(Section::model, name);
    std::vector<float> all(static_cast<size_t>(numel_of(t->shape)));
    const Box box{Shape(t->shape.size(), 0), t->shape};
    reader.read(*t, {&box, 1}, all.data());
    return all;
  }
  /// i32 [rows, columns] of a list of lists, some of its rows and columns.
  static Tensor tokens(Device& device, const nlohmann::json& lists, size_t first_row, size_t rows,
                       size_t first_column, size_t columns) {
    std::vector<int32_t> all;
    for (size_t r = first_row; r < first_row + rows; ++r)
      for (size_t c = first_column; c < first_column + columns; ++c) all.push_back(lists.at(r).at(c));
    const Tensor t = Tensor::empty(device, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)},
                                   DType::i32, "data");
    ops::copy_from_host(device.compute(), t, all.data(), t.nbytes());
    return t;
  }

  /// With a step the elements between those of the piece are read, too, and dropped.
  static std::vector<float> values_of(CheckpointReader& reader, const CheckpointTensor& t,
                                      const StoredPiece& piece) {
    Box box = piece.in_tensor;
    const int64_t first = box.offset.back() % piece.step;
    box.offset.back() -= first;
    box.size.back() *= piece.step;
    std::vector<float> all(static_cast<size_t>(numel_of(box.size))), taken;
    reader.read(t, {&box, 1}, all.data());
    for (size_t i = static_cast<size_t>(first); i < all.size(); i += static_cast<size_t>(piece.step))
      taken.push_back(all[i]);
    return taken;
  }

  /// Fills a sharded model from model.safetensors, each parameter read whole by every rank. Adapters keep their first values.
  void load(nn::CausalModel& model, const nn::ModelDescription& m) const {
    CheckpointReader reader = CheckpointReader::open(path / "model.safetensors");
    const StoredNames stored = stored_names(m);
    ShardRuntime& runtime = runtime_of(model);
    Stream& s = runtime.device().compute();
    WeightsChange change(runtime);
    for (auto& [name, p] : model.named_parameters()) {
      if (nn::is_adapter(name)) continue;
      const Shape shape = p.global_shape();
      std::vector<float> whole(static_cast<size_t>(numel_of(shape)));
      const Box all{Shape(shape.size(), 0), shape};
      const auto found = stored.find(name);
      const std::vector<StoredPiece> pieces =
          found == stored.end() ? std::vector<StoredPiece>{{name, shape, all, all}} : found->second;
      for (const StoredPiece& piece : pieces) {
        const CheckpointTensor* t = reader.find(Section::model, piece.tensor);
        ASSERT_NE(t, nullptr) << piece.tensor;
        ASSERT_EQ(t->shape, piece.shape) << piece.tensor;
        const std::vector<float> values = values_of(reader, *t, piece);
        // Pieces are whole along all dimensions of the parameter but the first: neighbours in memory.
        const int64_t row = numel_of(shape) / shape[0];
        ASSERT_EQ(static_cast<int64_t>(values.size()), piece.in_parameter.size[0] * row) << piece.tensor;
        std::copy(values.begin(), values.end(), whole.begin() + piece.in_parameter.offset[0] * row);
      }
      std::vector<float> mine;
      for (const GlobalRun& run : p.global_runs(p.shard_range()))
        mine.insert(mine.end(), whole.begin() + run.global.value,
                    whole.begin() + run.global.value + run.count);
      ASSERT_EQ(static_cast<int64_t>(mine.size()), p.shard().numel()) << name;
      if (!mine.empty()) ops::copy_from_host(s, p.shard(), mine.data(), p.shard().nbytes());
    }
    for (auto& [name, b] : model.named_buffers()) {
      const CheckpointTensor* t = reader.find(Section::model, name);
      ASSERT_NE(t, nullptr) << name;
      std::vector<float> values(static_cast<size_t>(b.numel()));
      const Box all{Shape(b.shape().size(), 0), b.shape()};
      reader.read(*t, {&all, 1}, values.data());
      ops::copy_from_host(s, b.data(), values.data(), b.data().nbytes());
    }
    s.synchronize();
    change.end();
  }

  std::filesystem::path path;
  nlohmann::json expected;
  nn::ModelDescription description;
};

/// A family's tiny model with as many heads as so many ranks divide.
inline nn::ModelDescription fitting(const std::string& family, int ranks_of_heads) {
  nn::ModelDescription m = family.starts_with("byte_gpt") ? byte_gpt(family.ends_with("experts") ? 4 : 0)
                                                          : GoldenFolder(family).description;
  m.init_std = 0.2f;
  if (m.kv_heads % ranks_of_heads != 0) {
    const int64_t groups = m.heads / m.kv_heads;
    m.kv_heads = ranks_of_heads;
    m.heads = groups * m.kv_heads;
  }
  if (m.mixture.experts > 0) m.mixture.balance = 0.05;
  return m;
}

}  // namespace sherd::test
