// A chain of wrapped blocks that can be made to throw anywhere, use a block several times, and compute
// forwards again in backward.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/toy_model.h"

namespace sherd::test {

class Chain : public Module {
 public:
  static constexpr int64_t kWidth = 12, kRows = 4;

  class Link : public ToyBlock {
   public:
    explicit Link(Chain& chain) : ToyBlock(kWidth, 20), chain_(chain) {}
    void forget() { drop_activations(); }

   protected:
    Tensor forward(const Tensor& x) override {
      chain_.pass();
      Tensor y = ToyBlock::forward(x);
      chain_.pass();
      return y;
    }
    Tensor backward(const Tensor& dy) override {
      chain_.pass();
      Tensor dx = ToyBlock::backward(dy);
      chain_.pass();
      return dx;
    }

   private:
    Chain& chain_;
  };

  explicit Chain(int links) {
    for (int i = 0; i < links; ++i) {
      links_.push_back(std::make_unique<Link>(*this));
      child("links." + std::to_string(i), *links_.back());
      order.push_back(static_cast<size_t>(i));
    }
    gain = param("gain.weight", {kWidth}, constant(1));
  }
  /// Called at the begin and end of everything that runs.
  std::function<void()> at_point;
  void pass() const {
    if (at_point) at_point();
  }
  /// Which link runs when.
  std::vector<size_t> order;
  /// Each link's forward is computed again right before its backward.
  bool recompute = false;
  Link& link(size_t i) { return *links_[i]; }
  size_t links() const { return links_.size(); }
  Parameter gain;

 protected:
  Tensor forward(const Tensor& in) override {
    pass();
    inputs_ = {in};
    for (size_t i : order) {
      inputs_.push_back((*links_[i])(inputs_.back()));
      if (recompute && training()) links_[i]->forget();
      pass();
    }
    const Tensor& x = inputs_.back();
    Tensor y = Tensor::empty(x.device(), x.shape(), x.dtype(), "test");
    rstd_ = Tensor::empty(x.device(), {x.size(0)}, DType::f32, "test");
    ops::rms_norm_forward(x.device().compute(), y, rstd_, x, gain.data(), 1e-6f);
    pass();
    return y;
  }
  Tensor backward(const Tensor& dy) override {
    pass();
    const Tensor& x = inputs_.back();
    Tensor d = Tensor::empty(x.device(), x.shape(), x.dtype(), "test");
    ops::rms_norm_backward(x.device().compute(), d, gain.grad(), dy, x, gain.data(), rstd_);
    pass();
    for (size_t k = order.size(); k-- > 0;) {
      Link& link = *links_[order[k]];
      if (recompute) link(inputs_[k]);
      d = link.run_backward(d);
      pass();
    }
    return d;
  }
  void drop_activations() override { inputs_.clear(); }

 private:
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Tensor> inputs_;
  Tensor rstd_;
};

/// A wrapped chain with its optimizer and batches that depend on their number.
struct ChainRig {
  ChainRig(RankContext& r, const FullyShardOptions& options, int links = 3, int replicas = 1,
           Algorithm algorithm = Algorithm::adamw)
      : rank(r), model(links) {
    const Routing routes = route(model, {.optimizer = std::move(algorithm)});
    const int shard = r.world->size() / replicas;
    const DeviceMesh mesh(r.world, {{"replicate", replicas}, {"shard", shard}});
    for (size_t i = 0; i < model.links(); ++i) fully_shard(model.link(i), mesh, options);
    fully_shard(model, mesh, options);
    optimizer.emplace(model, routes, OptimizerOptions{});
    in = Tensor::empty(*r.device, {Chain::kRows, Chain::kWidth}, DType::f32, "test");
    dy = Tensor::empty(*r.device, {Chain::kRows, Chain::kWidth}, DType::f32, "test");
  }
  Stream& stream() { return rank.device->compute(); }
  void load(int batch) {
    const int64_t at = (int64_t{batch} * rank.world->size() + rank.world->rank()) * in.numel();
    ops::random_normal(stream(), in, at, 1, "in", 0, 1);
    ops::random_normal(stream(), dy, at, 1, "dy", 0, 1);
  }
  void pass(int batch) {
    load(batch);
    model(in);
    model.run_backward(dy);
  }
  /// Batches of one step, and its update.
  void step(int first, int batches = 1) {
    for (int m = 0; m < batches; ++m) {
      runtime_of(model).set_last_microbatch(m + 1 == batches);
      pass(first + m);
    }
    clip_grad_norm(model, 0.5);
    optimizer->step(0.01);
  }
  /// Of all parameters, whole, in order.
  std::vector<std::vector<float>> weights() {
    std::vector<std::vector<float>> all;
    for (auto& [name, p] : model.named_parameters())
      all.push_back(ops::to_floats(stream(), p.dtensor().full_tensor(stream())));
    return all;
  }
  void sync() {
    runtime_of(model).wait_gradients();
    for (auto& u : runtime_of(model).units()) u->wait();
    stream().synchronize();
  }
  RankContext& rank;
  Chain model;
  std::optional<Optimizer> optimizer;
  Tensor in, dy;
};

}  // namespace sherd::test
