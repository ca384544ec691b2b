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

class Chain : public nn::Module<Chain> {
 public:
  static constexpr int64_t kWidth = 12, kRows = 4;

  class Link : public ToyBlock {
   public:
    explicit Link(Chain& chain) : ToyBlock(kWidth, 20), chain_(chain) {}
    nn::Var forward(const nn::Var& x) override { return chain_.point(ToyBlock::forward(chain_.point(x))); }

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
  nn::Var forward(const nn::Var& in) {
    nn::Var x = point(in);
    for (size_t i : order) {
      const auto call = [this, i](const nn::Var& y) { return (*links_[i])(y); };
      x = point(recompute ? nn::recompute(call, x) : call(x));
    }
    return point(nn::rms_norm(x, gain));
  }
  /// x itself: calls at_point in forward, and again in backward.
  nn::Var point(const nn::Var& x) const {
    pass();
    return with_gradients(x, {}, [this] { pass(); });
  }
  /// Called at the begin and end of everything that runs.
  std::function<void()> at_point;
  void pass() const {
    if (at_point) at_point();
  }
  /// Order in which links run.
  std::vector<size_t> order;
  /// Each link's forward is computed again right before its backward.
  bool recompute = false;
  Link& link(size_t i) { return *links_[i]; }
  size_t links() const { return links_.size(); }
  Parameter gain;

 private:
  std::vector<std::unique_ptr<Link>> links_;
};

/// A wrapped chain with its optimizer and batches that depend on their number.
struct ChainRig {
  ChainRig(RankContext& r, const FullyShardOptions& options, int links = 3, int replicas = 1,
           Algorithm algorithm = Algorithm::adamw, const RootOptions& root = {})
      : rank(r), model(links) {
    const Routing routes = route(model, {.optimizer = std::move(algorithm)});
    const int shard = r.world->size() / replicas;
    const DeviceMesh mesh(r.world, {{"replicate", replicas}, {"shard", shard}});
    for (size_t i = 0; i < model.links(); ++i) fully_shard(model.link(i), mesh, options);
    fully_shard(model, mesh, options, root);
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
  void forward() { taped.forward(model, in); }
  Tensor backward() { return taped.backward(dy); }
  void pass(int batch) {
    load(batch);
    forward();
    backward();
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
  /// Returns all parameters, unsharded, in order.
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
  Taped taped;
};

}  // namespace sherd::test
