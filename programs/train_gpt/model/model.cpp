#include "train_gpt/model/model.h"

#include <cmath>

namespace train_gpt {

namespace nn = sherd::nn;
namespace {

constexpr float kStd = 0.02f;

}  // namespace

sherd::TokenWork token_work(const GptShape& shape) {
  const int64_t d = shape.dim, mlp = 8 * d * d;
  const int64_t rest = shape.moe.experts > 0 ? shape.moe.experts * d + shape.moe.top_k * mlp : mlp;
  return {.weights = shape.layers * (4 * d * d + rest) + GptShape::kVocab * d,
          .attention_width = shape.layers * d};
}

Block::Block(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep)
    : tp_(tp), heads_(tp.share(shape.heads)) {
  const int64_t d = shape.dim, att = tp.share(d), hidden = tp.share(4 * d);
  const float small = kStd / std::sqrt(2.0f * static_cast<float>(shape.layers));
  norm1_ = param("norm1.weight", {d}, sherd::constant(1));
  qkv_ = tp.cut(param("qkv.weight", {3 * att, d}, sherd::normal(kStd))
                    .set_row_blocks(sherd::stacked_blocks({att, att, att}, {"q", "k", "v"})),
                0);
  if (shape.logit_maxima) {
    const int heads = static_cast<int>(heads_), width = static_cast<int>(d / shape.heads);
    maxima_ = std::make_shared<sherd::LogitMaxima>(
        sherd::AttentionHeads::fused("qkv", qkv_, {}, heads, heads, width));
  }
  proj_ = tp.cut(param("proj.weight", {d, att}, sherd::normal(small)), 1);
  norm2_ = param("norm2.weight", {d}, sherd::constant(1));
  if (shape.moe.experts > 0) {
    moe_ = std::make_unique<MoeMlp>(d, kStd, small, shape.moe, ep);
    child("moe", *moe_);
    return;
  }
  fc_ = tp.cut(param("fc.weight", {hidden, d}, sherd::normal(kStd)), 0);
  out_ = tp.cut(param("out.weight", {d, hidden}, sherd::normal(small)), 1);
}

Var Block::forward(const Var& x, const nn::LayerBalance& balance) {
  const Var qkv = nn::linear(tp_.copied(nn::rms_norm(x, norm1_)), qkv_);
  const Tensor most = maxima_ ? maxima_->values(qkv.device()) : Tensor();
  const Var seen = nn::attention(
      qkv, {.batch = balance.sequences, .heads = heads_, .max_logits = most, .lengths = balance.lengths});
  const Var mid = nn::add_row_parallel(tp_, x, seen, proj_);
  const Var in = nn::rms_norm(mid, norm2_);
  if (moe_) return mid + (*moe_)(in, balance);
  if (tp_.size() == 1) return nn::gelu_mlp(in, fc_, out_, mid);
  return mid + tp_.summed(nn::gelu_mlp(tp_.copied(in), fc_, out_));
}

Gpt::Gpt(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep) : tp_(tp) {
  tok_ = param("tok.weight", {GptShape::kVocab, shape.dim}, sherd::normal(kStd));
  pos_ = param("pos.weight", {shape.seq, shape.dim}, sherd::normal(kStd));
  child("blocks", blocks_);
  for (int64_t i = 0; i < shape.layers; ++i) blocks_.emplace_back(shape, tp, ep);
  norm_ = param("norm.weight", {shape.dim}, sherd::constant(1));
  head_ = tp.cut(param("head.weight", {tp.share(GptShape::kVocab), shape.dim}, sherd::normal(kStd)), 0);
}

Experts* Gpt::experts(size_t i) {
  MoeMlp* const moe = blocks_[i].moe();
  return moe != nullptr ? &moe->experts() : nullptr;
}

void Gpt::set_recompute(bool on) {
  for (Block& b : blocks_) b.set_recompute(on);
}

std::vector<std::shared_ptr<sherd::LogitMaxima>> Gpt::logit_maxima() {
  std::vector<std::shared_ptr<sherd::LogitMaxima>> all;
  for (Block& b : blocks_)
    if (b.logit_maxima()) all.push_back(b.logit_maxima());
  return all;
}

Var Gpt::hidden(const Var& tokens, float loss_scale, const Tensor& lengths) {
  Var x = nn::embedding(tokens, tok_, pos_);
  const auto loads = std::make_shared<nn::LayerLoads>(static_cast<int>(blocks_.size()));
  int layer = 0;
  for (Block& b : blocks_) {
    nn::LayerBalance balance(loss_scale, loads, layer++);
    balance.sequences = tokens.size(0);
    balance.lengths = lengths;
    x = b(x, balance);
  }
  return nn::rms_norm(x, norm_);
}

nn::CrossEntropy Gpt::forward(const Var& tokens, const Tensor& targets, nn::ObjectiveScale scale,
                              const nn::Documents& documents, const nn::NextTokens& next) {
  if (documents.starts.defined())
    throw sherd::NotSupported("the byte model's learned positions do not restart in a row");
  if (next.tokens.defined())
    throw sherd::InvalidArgument("the byte model has no head for multi-token prediction");
  const Var x = hidden(tokens, scale.balance, documents.lengths);
  if (tp_.size() == 1) return nn::linear_cross_entropy(x, head_, targets, scale.loss);
  return nn::vocab_parallel_cross_entropy(tp_, nn::linear(tp_.copied(x), head_), targets, scale.loss);
}

Tensor Gpt::forward(const Tensor& tokens) {
  const Var logits = nn::linear(hidden(tokens, 0), head_);
  return tp_.gather_columns(logits.stream(), logits.value());
}

}  // namespace train_gpt
