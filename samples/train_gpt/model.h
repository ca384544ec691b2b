// The byte-level GPT of the sample: pre-norm blocks, learned positions, untied head, no biases but
// the experts'.
#pragma once

#include <memory>
#include <vector>

#include <sherd/fsdp/module.h>

#include "moe.h"
#include "parallel_linear.h"

namespace train_gpt {

struct GptShape {
  int64_t dim = 128, layers = 4, heads = 4, seq = 128;
  MoeShape moe{};
  static constexpr int64_t kVocab = 256;
};

/// x + proj(attention(qkv(norm1(x)))), then + mlp(norm2(.)), mlp(x) = out(gelu(fc(x))) or a mixture of
/// experts. Input and output [batch*seq, dim]. Tensor-parallel (dense only): each rank has heads / tp heads
/// and 4 * dim / tp hidden columns, and the whole norms.
class Block : public Module {
 public:
  Block(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep);
  /// Sequences in the coming inputs.
  void set_batch(int64_t batch) { batch_ = batch; }
  /// Null in a dense model.
  MoeMlp* moe() { return moe_.get(); }

 protected:
  Tensor forward(const Tensor& x) override;
  Tensor backward(const Tensor& dy) override;
  void drop_activations() override { saved_.clear(); }

 private:
  // What backward needs of one forward.
  struct Saved {
    Tensor x, rstd1, n1, qkv, lse, att, x2, rstd2, n2, h, a;
  };
  Tensor add_mlp(Stream& s, Saved& v);
  Tensor mlp_backward(Stream& s, const Tensor& dy, const Saved& v);

  GptShape shape_;
  TensorParallel tp_;
  int64_t batch_ = 0;
  Parameter norm1_, qkv_, proj_, norm2_, fc_, out_;
  std::unique_ptr<MoeMlp> moe_;
  std::vector<Saved> saved_;
};

/// Tokens in, losses (or logits) out. The ranks of `tp`, whose size divides heads and the vocabulary, get the
/// same tokens and targets, and give the same bits; the head is cut along the vocabulary, embeddings and
/// norms are whole on each.
class Gpt : public Module {
 public:
  explicit Gpt(const GptShape& shape, const TensorParallel& tp = {}, const ExpertParallel& ep = {});
  Block& block(size_t i) { return *blocks_[i]; }
  size_t blocks() const { return blocks_.size(); }

  /// Targets of the coming call, i32 [batch, seq]: it returns the losses f32 [batch*seq] in nats. Without
  /// targets (an undefined tensor) it returns the logits [batch*seq, 256].
  void set_targets(const Tensor& targets) { targets_ = targets; }
  /// d(objective)/d(loss of one token) of the coming forward and its backward.
  void set_loss_scale(float scale);

 protected:
  /// tokens i32 [batch, seq].
  Tensor forward(const Tensor& tokens) override;
  /// The argument is not used: the objective is loss_scale * sum of losses.
  Tensor backward(const Tensor&) override;
  void drop_activations() override { saved_ = {}; }

 private:
  GptShape shape_;
  TensorParallel tp_;
  Parameter tok_, pos_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Parameter norm_, head_;
  Tensor targets_;
  float loss_scale_ = 1;
  struct Saved {
    Tensor tokens, x, rstd, n, logits;
    ParallelCrossEntropy loss;
  } saved_;
};

}  // namespace train_gpt
