// Models whose forwards a tape records, and a way to train them under any strategy.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/sherd.h>

#include "support/toy_model.h"

namespace sherd::test {

constexpr int64_t kWidth = 12, kHidden = 20, kRows = 6;

/// A ToyBlock that can be made to fail.
struct TapeBlock : ToyBlock {
  TapeBlock() : ToyBlock(kWidth, kHidden) {}
  nn::Var forward(const nn::Var& x) override {
    if (fails) throw std::runtime_error("a block that fails");
    return ToyBlock::forward(x);
  }
  bool fails = false;
};

/// Three blocks and a head, used as `use` says.
struct TapeNet : nn::Module<TapeNet> {
  using Use = std::function<nn::Var(TapeNet&, const nn::Var&)>;
  TapeNet() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<TapeBlock>());
      child("blocks." + std::to_string(i), *blocks.back());
    }
    head = param("head.weight", {4, kWidth}, normal(0.3f));
  }
  nn::Var forward(const nn::Var& x) { return nn::linear(use(*this, x), head); }
  TapeBlock& block(size_t i) { return *blocks[i]; }

  std::vector<std::unique_ptr<TapeBlock>> blocks;
  Parameter head;
  Use use = [](TapeNet& net, nn::Var x) {
    for (auto& b : net.blocks) x = (*b)(x);
    return x;
  };
};

/// Wraps each block and the root.
inline void shard(TapeNet& net, RankContext& rank, const FullyShardOptions& options,
                  const RootOptions& root = {}) {
  const DeviceMesh mesh = mesh_of(rank);
  fully_shard(net.blocks, mesh, options);
  fully_shard(net, mesh, options, root);
}

/// Rows that depend on the rank and on `salt`.
inline Tensor rows(RankContext& rank, uint64_t salt, int64_t width = kWidth) {
  Tensor x = Tensor::empty(*rank.device, {kRows, width}, DType::f32, "data");
  ops::random_normal(rank.device->compute(), x, (static_cast<int64_t>(salt) * 64 + rank.world->rank()) * 4096,
                     7, "data", 0, 1);
  return x;
}

/// Every weight of a model by its full name, whole.
inline std::map<std::string, std::vector<float>> whole_weights(ModuleBase& model, RankContext& rank) {
  std::map<std::string, std::vector<float>> all;
  Stream& s = rank.device->compute();
  ShardRuntime& runtime = runtime_of(model);
  for (auto& unit : runtime.units()) {
    unit->unshard();
    unit->wait();
    for (auto& p : unit->params()) all[p.name()] = ops::to_floats(s, p.data());
    unit->reshard();
  }
  return all;
}

}  // namespace sherd::test
