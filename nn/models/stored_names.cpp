#include <sherd/nn/models/stored_names.h>

#include <fmt/format.h>

namespace sherd::nn {
namespace {

// q, k and v are thirds of the columns of c_attn [dim, 3 dim], and of its bias.
void add_gpt2(const ModelDescription& m, StoredNames& all) {
  const int64_t width = m.heads * m.head_dim;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string attention = fmt::format("transformer.h.{}.attn.", layer);
    int64_t at = 0;
    for (const char* part : {"q_attn", "k_attn", "v_attn"}) {
      all[attention + part + ".weight"] = {{attention + "c_attn.weight",
                                            {m.dim, 3 * width},
                                            {{0, 0}, {m.dim, width}},
                                            {{0, at}, {m.dim, width}}}};
      all[attention + part + ".bias"] = {
          {attention + "c_attn.bias", {3 * width}, {{0}, {width}}, {{at}, {width}}}};
      at += width;
    }
  }
}

// Names of one kind of an expert's matrices.
struct Kind {
  const char *ours, *mixtral, *fused;
  int64_t rows, cols;
  int64_t fused_rows, begin;  // of a matrix of the fused tensor, and where this one begins in it
};

// In files each expert has its matrices; in the memory of transformers gate and up of all are one tensor,
// down another.
void add_experts(const ModelDescription& m, bool fused, StoredNames& all) {
  const int64_t experts = m.mixture.experts, hidden = m.mixture.hidden;
  const bool mixtral = m.family == ModelFamily::mixtral && !fused;
  const Kind kinds[] = {{"gate_proj", "w1", "gate_up_proj", hidden, m.dim, 2 * hidden, 0},
                        {"up_proj", "w3", "gate_up_proj", hidden, m.dim, 2 * hidden, hidden},
                        {"down_proj", "w2", "down_proj", m.dim, hidden, m.dim, 0}};
  for (int64_t layer = m.mixture.dense_layers; layer < m.layers + m.mtp_layers; ++layer) {
    const std::string ours = fmt::format("model.layers.{}.mlp.", layer);
    const std::string theirs = mixtral ? fmt::format("model.layers.{}.block_sparse_moe.", layer) : ours;
    if (mixtral)
      all[ours + "gate.weight"] = {
          {theirs + "gate.weight", {experts, m.dim}, {{0, 0}, {experts, m.dim}}, {{0, 0}, {experts, m.dim}}}};
    for (const Kind& k : kinds) {
      std::vector<StoredPiece>& pieces = all[ours + "experts." + k.ours + ".weight"];
      if (fused) {
        const Shape stack{experts, k.rows, k.cols};
        pieces = {{ours + "experts." + k.fused,
                   {experts, k.fused_rows, k.cols},
                   {{0, 0, 0}, stack},
                   {{0, k.begin, 0}, stack}}};
        continue;
      }
      for (int64_t e = 0; e < experts; ++e)
        pieces.push_back({fmt::format("{}experts.{}.{}.weight", theirs, e, mixtral ? k.mixtral : k.ours),
                          {k.rows, k.cols},
                          {{e, 0, 0}, {1, k.rows, k.cols}},
                          {{0, 0}, {k.rows, k.cols}}});
    }
  }
}

// gpt_oss: columns of gate and up alternate in one tensor [experts, dim, 2 hidden], so do their biases'.
void add_gpt_oss_experts(const ModelDescription& m, StoredNames& all) {
  const int64_t experts = m.mixture.experts, hidden = m.mixture.hidden;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string stack = fmt::format("model.layers.{}.mlp.experts.", layer);
    const auto add = [&](const char* ours, const char* theirs, const Shape& shape, int64_t step,
                         int64_t way) {
      Shape whole = shape, begin(shape.size(), 0);
      whole.back() *= step;
      begin.back() = way;
      all[stack + ours] = {{stack + theirs, whole, {Shape(shape.size(), 0), shape}, {begin, shape}, step}};
    };
    for (const int64_t way : {0, 1}) {
      add(way == 0 ? "gate_proj.weight" : "up_proj.weight", "gate_up_proj", {experts, m.dim, hidden}, 2, way);
      add(way == 0 ? "gate_proj.bias" : "up_proj.bias", "gate_up_proj_bias", {experts, hidden}, 2, way);
    }
    add("down_proj.weight", "down_proj", {experts, hidden, m.dim}, 1, 0);
    add("down_proj.bias", "down_proj_bias", {experts, m.dim}, 1, 0);
  }
}

}  // namespace

StoredNames stored_names(const ModelDescription& m, bool fused_experts) {
  StoredNames all;
  if (m.family == ModelFamily::gpt2) add_gpt2(m, all);
  if (is_gpt_oss(m))
    add_gpt_oss_experts(m, all);
  else if (m.mixture.experts > 0 && !is_byte_gpt(m))
    add_experts(m, fused_experts, all);
  return all;
}

}  // namespace sherd::nn
