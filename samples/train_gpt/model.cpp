#include "model.h"

#include <cmath>

#include <sherd/kernels/ops/ops.h>

namespace train_gpt {

namespace ops = sherd::ops;
namespace {

constexpr float kEps = 1e-6f;
constexpr float kStd = 0.02f;

Tensor add(Stream& s, const Tensor& a, const Tensor& b) {
  Tensor y = like(a, a.shape());
  ops::add(s, y, a, b);
  return y;
}

Tensor norm(Stream& s, const Tensor& x, const Parameter& w, Tensor& rstd) {
  Tensor y = like(x, x.shape());
  rstd = like_f32(x, {x.size(0)});
  ops::rms_norm_forward(s, y, rstd, x, w.data(), kEps);
  return y;
}

Tensor norm_backward(Stream& s, const Tensor& dy, const Tensor& x, const Parameter& w, const Tensor& rstd) {
  Tensor dx = like(x, x.shape());
  ops::rms_norm_backward(s, dx, w.grad(), dy, x, w.data(), rstd);
  return dx;
}

}  // namespace

Block::Block(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep)
    : shape_(shape), tp_(tp) {
  const int64_t d = shape.dim, att = tp.share(d), hidden = tp.share(4 * d);
  const float small = kStd / std::sqrt(2.0f * static_cast<float>(shape.layers));
  norm1_ = param("norm1.weight", {d}, sherd::constant(1));
  qkv_ = tp.cut(param("qkv.weight", {3 * att, d}, sherd::normal(kStd))
                    .set_row_blocks(sherd::stacked_blocks({att, att, att}, {"q", "k", "v"})),
                0);
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

Tensor Block::add_mlp(Stream& s, Saved& v) {
  if (moe_) return add(s, v.x2, (*moe_)(v.n2));
  v.h = like(v.n2, {v.n2.size(0), fc_.shape()[0]});
  v.a = like(v.h, v.h.shape());
  ops::gemm_gelu(s, v.a, v.h, v.n2, false, fc_.data(), true);
  return add_row_parallel(s, tp_, v.x2, v.a, out_);
}

Tensor Block::mlp_backward(Stream& s, const Tensor& dy, const Saved& v) {
  if (moe_) return moe_->run_backward(dy);
  const Tensor dh = linear_gelu_backward(s, dy, v.a, v.h, out_);
  return column_parallel_backward(s, tp_, dh, v.n2, fc_);
}

Tensor Block::forward(const Tensor& x) {
  Stream& s = x.device().compute();
  Saved v;
  v.x = x;
  v.n1 = norm(s, x, norm1_, v.rstd1);
  v.qkv = linear(s, v.n1, qkv_);
  const int64_t heads = tp_.share(shape_.heads);
  v.att = like(x, {x.size(0), tp_.share(shape_.dim)});
  v.lse = like_f32(x, {batch_, heads, x.size(0) / batch_});
  ops::attention_forward(s, v.att, v.lse, v.qkv, batch_, heads);
  v.x2 = add_row_parallel(s, tp_, x, v.att, proj_);
  v.n2 = norm(s, v.x2, norm2_, v.rstd2);
  Tensor y = add_mlp(s, v);
  if (training()) saved_.push_back(std::move(v));
  return y;
}

Tensor Block::backward(const Tensor& dy) {
  Stream& s = dy.device().compute();
  const Saved v = std::move(saved_.back());
  saved_.pop_back();
  const Tensor dx2 = norm_backward(s, mlp_backward(s, dy, v), v.x2, norm2_, v.rstd2);
  ops::add(s, dx2, dx2, dy);
  const Tensor datt = linear_backward(s, dx2, v.att, proj_);
  const Tensor dqkv = like(v.qkv, v.qkv.shape());
  ops::attention_backward(s, dqkv, datt, v.att, v.lse, v.qkv, batch_, tp_.share(shape_.heads));
  const Tensor dx =
      norm_backward(s, column_parallel_backward(s, tp_, dqkv, v.n1, qkv_), v.x, norm1_, v.rstd1);
  ops::add(s, dx, dx, dx2);
  return dx;
}

Gpt::Gpt(const GptShape& shape, const TensorParallel& tp, const ExpertParallel& ep) : shape_(shape), tp_(tp) {
  tok_ = param("tok.weight", {GptShape::kVocab, shape.dim}, sherd::normal(kStd));
  pos_ = param("pos.weight", {shape.seq, shape.dim}, sherd::normal(kStd));
  for (int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_unique<Block>(shape, tp, ep));
    child("blocks." + std::to_string(i), *blocks_.back());
  }
  norm_ = param("norm.weight", {shape.dim}, sherd::constant(1));
  head_ = tp.cut(param("head.weight", {tp.share(GptShape::kVocab), shape.dim}, sherd::normal(kStd)), 0);
}

void Gpt::set_loss_scale(float scale) {
  loss_scale_ = scale;
  for (auto& b : blocks_)
    if (b->moe()) b->moe()->set_loss_scale(scale);
}

Tensor Gpt::forward(const Tensor& tokens) {
  Stream& s = tokens.device().compute();
  const int64_t batch = tokens.size(0), rows = tokens.numel();
  Tensor x = like(tok_.data(), {rows, shape_.dim});
  ops::embedding_forward(s, x, tokens, tok_.data(), pos_.data());
  for (auto& b : blocks_) {
    b->set_batch(batch);
    x = (*b)(x);
  }
  Saved v{tokens, x, {}, {}, {}, {}};
  v.n = norm(s, x, norm_, v.rstd);
  v.logits = linear(s, v.n, head_);
  if (!targets_.defined()) return tp_.gather_columns(s, v.logits);
  if (!training()) return v.loss.forward(s, tp_, v.logits, targets_);
  Tensor losses = v.loss.forward_for_backward(s, tp_, v.logits, targets_, loss_scale_);
  saved_ = std::move(v);
  return losses;
}

Tensor Gpt::backward(const Tensor&) {
  const Saved v = std::exchange(saved_, {});
  Stream& s = v.x.device().compute();
  v.loss.backward(s, tp_, v.logits);
  Tensor dx = norm_backward(s, column_parallel_backward(s, tp_, v.logits, v.n, head_), v.x, norm_, v.rstd);
  for (size_t i = blocks_.size(); i-- > 0;) dx = blocks_[i]->run_backward(dx);
  ops::embedding_backward(s, tok_.grad(), pos_.grad(), dx, v.tokens);
  return {};
}

}  // namespace train_gpt
