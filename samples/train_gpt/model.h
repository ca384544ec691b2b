// The byte-level GPT of the sample: pre-norm blocks, learned positions, untied head, no biases but
// the experts'.
#pragma once

#include <memory>

#include <sherd/fsdp/module_list.h>
#include <sherd/nn/nn.h>

#include "moe.h"
#include "parallel_linear.h"

namespace train_gpt {

using sherd::nn::Var;

struct GptShape {
  int64_t dim = 128, layers = 4, heads = 4, seq = 128;
  bool recompute = false;  // each block's activations in backward
  MoeShape moe{};
  static constexpr int64_t kVocab = 256;
};

/// x + proj(attention(qkv(norm1(x)))), then + mlp(norm2(.)), mlp(x) = out(gelu(fc(x))) or a mixture of
/// experts. Input and output [batch*seq, dim]. Tensor-parallel (dense only): each rank has heads / tp heads
/// and 4 * dim / tp hidden columns, and the whole norms.
class Block : public sherd::nn::Module<Block> {
 public:
  Block(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep);
  /// `loss_scale` is what the balancing loss is multiplied by: d(objective)/d(loss of one row).
  Var forward(const Var& x, int64_t batch, float loss_scale);
  /// Null in a dense model.
  MoeMlp* moe() { return moe_.get(); }

 private:
  TensorParallel tp_;
  int64_t heads_;  // of this rank
  Parameter norm1_, qkv_, proj_, norm2_, fc_, out_;
  std::unique_ptr<MoeMlp> moe_;
};

/// The ranks of `tp`, whose size divides heads and the vocabulary, get the same tokens and targets, and give the
/// same bits; the head is cut along the vocabulary, embeddings and norms are whole on each.
class Gpt : public sherd::nn::Module<Gpt> {
 public:
  explicit Gpt(const GptShape& shape, const TensorParallel& tp = {}, const ExpertParallel& ep = {});
  Block& block(size_t i) { return blocks_[i]; }
  size_t blocks() const { return blocks_.size(); }

  /// tokens and targets i32 [batch, seq]: the losses f32 [batch*seq] in nats, and `scale` times their sum.
  sherd::nn::CrossEntropy forward(const Var& tokens, const Tensor& targets, float scale);
  /// The logits [batch*seq, 256], for no backward.
  Tensor forward(const Tensor& tokens);

 private:
  Var hidden(const Var& tokens, float loss_scale);

  TensorParallel tp_;
  Parameter tok_, pos_;
  sherd::ModuleList<Block> blocks_;
  Parameter norm_, head_;
};

}  // namespace train_gpt
