// The byte-level GPT of the sample: pre-norm blocks, learned positions, untied head, no biases but
// the experts'.
#pragma once

#include <memory>

#include <sherd/fsdp/module_list.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/nn.h>
#include <sherd/train/report/flops.h>

#include "train_gpt/model/moe.h"

namespace train_gpt {

using sherd::Parameter;
using sherd::Tensor;
using sherd::nn::TensorParallel;
using sherd::nn::Var;

struct GptShape {
  int64_t dim = 128, layers = 4, heads = 4, seq = 128;
  MoeShape moe{};
  bool logit_maxima = false;  // as CausalModelOptions::logit_maxima
  static constexpr int64_t kVocab = 256;
};

/// Returns the products of one token, over all layers and the head.
sherd::TokenWork token_work(const GptShape& shape);

/// x + proj(attention(qkv(norm1(x)))), then + mlp(norm2(.)), mlp(x) = out(gelu(fc(x))) or a mixture of
/// experts. Input and output [batch*seq, dim]. Tensor-parallel (dense only): each rank has heads / tp heads
/// and 4 * dim / tp hidden columns, and the whole norms.
class Block : public sherd::nn::Module<Block> {
 public:
  Block(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep);
  /// `balance` has the sequences of x; its scale is the factor of the balancing loss: d(objective)/d(loss of
  /// one row).
  Var forward(const Var& x, const sherd::nn::LayerBalance& balance);
  /// Null in a dense model.
  MoeMlp* moe() { return moe_.get(); }
  /// Null without GptShape::logit_maxima.
  const std::shared_ptr<sherd::LogitMaxima>& logit_maxima() const { return maxima_; }

 private:
  TensorParallel tp_;
  int64_t heads_;  // of this rank
  Parameter norm1_, qkv_, proj_, norm2_, fc_, out_;
  std::unique_ptr<MoeMlp> moe_;
  std::shared_ptr<sherd::LogitMaxima> maxima_;
};

/// The ranks of `tp`, whose size divides heads and the vocabulary, get the same tokens and targets, and give the
/// same bits; the head is cut along the vocabulary, embeddings and norms are whole on each.
class Gpt : public sherd::nn::CausalModel {
 public:
  explicit Gpt(const GptShape& shape, const TensorParallel& tp = {}, const ExpertParallel& ep = {});
  size_t blocks() const override { return blocks_.size(); }
  Block& block(size_t i) override { return blocks_[i]; }
  Experts* experts(size_t i) override;
  void set_recompute(bool on) override;
  std::vector<std::shared_ptr<sherd::LogitMaxima>> logit_maxima() override;

  sherd::nn::CrossEntropy forward(const Var& tokens, const Tensor& targets, sherd::nn::ObjectiveScale scale,
                                  const sherd::nn::Documents& documents,
                                  const sherd::nn::NextTokens& next) override;
  Tensor forward(const Tensor& tokens) override;

 private:
  /// @param lengths as Documents::lengths
  Var hidden(const Var& tokens, float loss_scale, const Tensor& lengths = {});

  TensorParallel tp_;
  Parameter tok_, pos_;
  sherd::ModuleList<Block> blocks_;
  Parameter norm_, head_;
};

}  // namespace train_gpt
