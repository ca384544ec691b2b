// One rank's toy model, wrapped and ready to be stepped by hand.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "support/toy_model.h"

namespace sherd::test {

constexpr int kBlocks = 3;

inline CommCounts minus(CommCounts a, const CommCounts& b) {
  for (auto& [k, v] : b) {
    a[k].calls -= v.calls;
    a[k].bytes -= v.bytes;
  }
  return a;
}

/// A wrapped toy model with its optimizer and one batch of six tokens.
struct Rig {
  Rig(RankContext& r, const FullyShardOptions& o, int replicas = 1,
      const std::function<void(ToyModel&)>& before = nullptr, int64_t width = 16, int64_t hidden = 32,
      const RootOptions& root = {}, const Algorithm& algorithm = Algorithm::adamw)
      : rank(r), model(width, hidden, kBlocks) {
    if (before) before(model);
    routes = route(model, {.optimizer = algorithm});
    const DeviceMesh mesh = mesh_of(r, replicas);
    for (auto& b : model.blocks_) fully_shard(*b, mesh, o);
    fully_shard(model, mesh, o, root);
    optimizer.emplace(model, routes, OptimizerOptions{});
    tokens = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    model.targets = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    ops::fill(r.device->compute(), tokens, 3);
    ops::fill(r.device->compute(), model.targets, 4);
  }
  Rig(RankContext& r, const FullyShardOptions& o, const RootOptions& root)
      : Rig(r, o, 1, nullptr, 16, 32, root) {}
  void forward() { taped.forward(model, tokens); }
  void backward() { taped.backward(); }
  void step() {
    forward();
    backward();
    clip_grad_norm(model, 1.0);
    optimizer->step(0.01);
  }
  CommCounts counted(const std::function<void()>& f) {
    sync();
    const CommCounts before = rank.world->counts();
    f();
    sync();
    return minus(rank.world->counts(), before);
  }
  void sync() {
    ShardRuntime& rt = runtime_of(model);
    rt.wait_gradients();
    for (auto& u : rt.units()) u->wait();
    rank.device->compute().synchronize();
  }
  RankContext& rank;
  ToyModel model;
  Routing routes;
  std::optional<Optimizer> optimizer;
  Tensor tokens;
  Taped taped;
};

}  // namespace sherd::test
