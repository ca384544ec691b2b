// Small models with awkward shapes, and a way to train them on any mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>
#include <sherd/nn/ops.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>

namespace sherd::test {

/// sherd::launch with the kernels that this build's tests use.
inline void launch(int ranks, LaunchOptions options, const std::function<void(RankContext&)>& body) {
  options.device.kernels = parse_cpu_kernels(TEST_KERNELS);
  sherd::launch(ranks, options, body);
}
inline void launch(int ranks, const std::function<void(RankContext&)>& body) {
  test::launch(ranks, LaunchOptions{}, body);
}

constexpr Strategy kEveryStrategy[] = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                       Strategy::optim_grads_params};

/// All ranks in one dimension, "shard".
inline DeviceMesh mesh_of(RankContext& r) { return DeviceMesh(r.world, {{"shard", r.world->size()}}); }

/// The gradient of w where y = x w^T.
inline void weight_backward(Stream& s, const Parameter& w, const Tensor& dy, const Tensor& x) {
  const auto [grad, beta] = w.grad_for_overwrite();
  ops::gemm(s, grad, dy, true, x, false, 1, beta);
}

/// y = x + down(gelu(up(norm(x)))), widths chosen by the caller.
class ToyBlock : public Module {
 public:
  ToyBlock(int64_t width, int64_t hidden) : width_(width), hidden_(hidden) {
    norm_ = param("norm.weight", {width}, constant(1));
    up_ = param("up.weight", {hidden, width}, normal(0.2f));
    down_ = param("down.weight", {width, hidden}, normal(0.2f));
  }
  Parameter norm_, up_, down_;

 protected:
  Tensor forward(const Tensor& x) override {
    Device& dev = x.device();
    Stream& s = dev.compute();
    const int64_t rows = x.size(0);
    auto make = [&](Shape shape, DType t) { return Tensor::empty(dev, std::move(shape), t, "activations"); };
    Saved v{x, make({rows}, DType::f32), make({rows, width_}, x.dtype()), make({rows, hidden_}, x.dtype()),
            make({rows, hidden_}, x.dtype())};
    ops::rms_norm_forward(s, v.n, v.rstd, x, norm_.data(), 1e-6f);
    ops::gemm(s, v.h, v.n, false, up_.data(), true);
    ops::gelu_forward(s, v.a, v.h);
    Tensor y = make({rows, width_}, x.dtype());
    ops::gemm(s, y, v.a, false, down_.data(), true);
    ops::add(s, y, y, x);
    if (training()) saved_.push_back(v);
    return y;
  }
  Tensor backward(const Tensor& dy) override {
    Device& dev = dy.device();
    Stream& s = dev.compute();
    const Saved v = saved_.back();
    saved_.pop_back();
    auto like = [&](const Tensor& t) { return Tensor::empty(dev, t.shape(), t.dtype(), "activations"); };
    if (down_.trainable()) weight_backward(s, down_, dy, v.a);
    const Tensor da = like(v.a);
    ops::gemm(s, da, dy, false, down_.data(), false);
    ops::gelu_backward(s, da, da, v.h);
    if (up_.trainable()) weight_backward(s, up_, da, v.n);
    const Tensor dn = like(v.n);
    ops::gemm(s, dn, da, false, up_.data(), false);
    const Tensor dx = like(v.x);
    if (norm_.trainable()) {
      ops::rms_norm_backward(s, dx, norm_.grad(), dn, v.x, norm_.data(), v.rstd);
    } else {
      const Tensor scratch = Tensor::empty(dev, {width_}, DType::f32, "activations");
      ops::fill(s, scratch, 0);
      ops::rms_norm_backward(s, dx, scratch, dn, v.x, norm_.data(), v.rstd);
    }
    ops::add(s, dx, dx, dy);
    return dx;
  }
  void drop_activations() override { saved_.clear(); }

 private:
  struct Saved {
    Tensor x, rstd, n, h, a;
  };
  int64_t width_, hidden_;
  std::vector<Saved> saved_;
};

/// Input i32 tokens [1, rows] -> embedding -> blocks -> head -> cross-entropy losses [rows].
class ToyModel : public Module {
 public:
  static constexpr int64_t kVocab = 11;
  ToyModel(int64_t width, int64_t hidden, int blocks) : width_(width) {
    table_ = param("embed.weight", {kVocab, width}, normal(0.5f));
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(std::make_shared<ToyBlock>(width, hidden));
      child("blocks." + std::to_string(i), *blocks_.back());
    }
    gain_ = param("gain.weight", {1}, constant(1));
    head_ = param("head.weight", {kVocab, width}, normal(0.2f));
  }
  Tensor targets;
  float loss_scale = 1;
  std::vector<std::shared_ptr<ToyBlock>> blocks_;
  Parameter table_, gain_, head_;

 protected:
  Tensor forward(const Tensor& tokens) override {
    Device& dev = tokens.device();
    Stream& s = dev.compute();
    tokens_ = tokens;
    const int64_t rows = tokens.numel();
    Tensor x = Tensor::empty(dev, {rows, width_}, table_.data().dtype(), "activations");
    ops::embedding_forward(s, x, tokens, table_.data(), {});
    for (auto& b : blocks_) x = (*b)(x);
    x_ = x;
    logits_ = Tensor::empty(dev, {rows, kVocab}, x.dtype(), "activations");
    ops::gemm(s, logits_, x, false, head_.data(), true);
    Tensor losses = Tensor::empty(dev, {rows}, DType::f32, "activations");
    ops::cross_entropy_forward(s, losses, logits_, targets);
    return losses;
  }
  Tensor backward(const Tensor&) override {
    Device& dev = x_.device();
    Stream& s = dev.compute();
    ops::cross_entropy_backward(s, logits_, logits_, targets, loss_scale);
    weight_backward(s, head_, logits_, x_);
    Tensor dx = Tensor::empty(dev, x_.shape(), x_.dtype(), "activations");
    ops::gemm(s, dx, logits_, false, head_.data(), false);
    for (size_t i = blocks_.size(); i-- > 0;) dx = blocks_[i]->run_backward(dx);
    if (gain_.trainable()) gain_.grad();  // one element, gradient zero
    if (table_.trainable()) ops::embedding_backward(s, table_.grad(), {}, dx, tokens_);
    return {};
  }

 private:
  int64_t width_;
  Tensor tokens_, x_, logits_;
};

struct ToyRun {
  int ranks = 1, replicas = 1;
  int64_t width = 13, hidden = 29;
  int blocks = 3;
  int steps = 4, accumulate = 1;
  int64_t rows = 24;  // tokens of a step, over all ranks
  Algorithm optimizer = Algorithm::adamw;
  double clip = 0.5;
  FullyShardOptions options;
  MuonOptions muon;
  /// Called on every rank before wrapping, after routing, and after every step.
  std::function<void(ToyModel&)> before, after_step;
  /// Starts the ranks; launch() when null.
  std::function<void(int, const std::function<void(RankContext&)>&)> launcher;
  /// Called on every rank at the end.
  std::function<void(ToyModel&, RankContext&)> at_end;
};

struct ToyResult {
  std::vector<double> losses;
  std::vector<float> norms;
  std::vector<int64_t> zeros;
  std::vector<std::vector<float>> weights;  // named_parameters() order
};

ToyResult run_toy(const ToyRun& run);

}  // namespace sherd::test
