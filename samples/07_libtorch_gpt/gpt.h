// The model of train_gpt as libtorch modules: the same names, shapes and formulas. It does not depend on
// ranks; only the two holders are sherd's.
#pragma once

#include <torch/torch.h>

#include <cmath>

#include <sherd/torch/call.h>
#include <sherd/torch/recompute.h>

namespace libtorch_gpt {

using torch::Tensor;

struct Shape {
  int64_t dim = 128, layers = 4, heads = 4, seq = 128;
  bool recompute = false;
  static constexpr int64_t kVocab = 256;
};

struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(int64_t dim) : weight(register_parameter("weight", torch::ones({dim}))) {}
  Tensor forward(const Tensor& x) { return at::rms_norm(x, weight.sizes(), weight, 1e-6); }
  Tensor weight;
};
TORCH_MODULE(RmsNorm);

inline torch::nn::Linear linear(int64_t in, int64_t out, double stddev) {
  torch::nn::Linear l(torch::nn::LinearOptions(in, out).bias(false));
  torch::nn::init::normal_(l->weight, 0, stddev);
  return l;
}

/// x + proj(attention(qkv(norm1(x)))), then + out(gelu(fc(norm2(.)))), of [batch, seq, dim].
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& s)
      : heads(s.heads),
        norm1(register_module("norm1", RmsNorm(s.dim))),
        qkv(register_module("qkv", linear(s.dim, 3 * s.dim, 0.02))),
        proj(register_module("proj",
                             linear(s.dim, s.dim, 0.02 / std::sqrt(2.0 * static_cast<double>(s.layers))))),
        norm2(register_module("norm2", RmsNorm(s.dim))),
        fc(register_module("fc", linear(s.dim, 4 * s.dim, 0.02))),
        out(register_module(
            "out", linear(4 * s.dim, s.dim, 0.02 / std::sqrt(2.0 * static_cast<double>(s.layers))))) {}
  Tensor forward(const Tensor& x) {
    const int64_t b = x.size(0), t = x.size(1), d = x.size(2);
    const auto parts = qkv(norm1(x)).view({b, t, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const Tensor mid = x + proj(attended.transpose(1, 2).reshape({b, t, d}));
    return mid + out(torch::gelu(fc(norm2(mid)), "tanh"));
  }
  int64_t heads;
  RmsNorm norm1;
  torch::nn::Linear qkv, proj;
  RmsNorm norm2;
  torch::nn::Linear fc, out;
};
SHERD_TORCH_MODULE(Block);  // replaces TORCH_MODULE

/// Logits [batch, seq, vocab] of tokens i64 [batch, seq].
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Shape& s)
      : recompute(s.recompute),
        tok(register_module("tok", torch::nn::Embedding(Shape::kVocab, s.dim))),
        pos(register_module("pos", torch::nn::Embedding(s.seq, s.dim))) {
    torch::nn::init::normal_(tok->weight, 0, 0.02);
    torch::nn::init::normal_(pos->weight, 0, 0.02);
    for (int64_t i = 0; i < s.layers; ++i) blocks->push_back(Block(s));
    register_module("blocks", blocks);
    norm = register_module("norm", RmsNorm(s.dim));
    head = register_module("head", linear(s.dim, Shape::kVocab, 0.02));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = tok(tokens) + pos->weight.slice(0, 0, tokens.size(1));
    for (const auto& block : *blocks) {
      const auto run = [block](const Tensor& h) { return block->as<Block>()->forward(h); };
      x = recompute ? sherd::torch::recompute(run, x) : run(x);
    }
    return head(norm(x));
  }
  bool recompute;
  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  RmsNorm norm = nullptr;
  torch::nn::Linear head = nullptr;
};
SHERD_TORCH_MODULE(Gpt);

}  // namespace libtorch_gpt
