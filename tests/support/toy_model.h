// Small models with awkward shapes, and a way to train them on any mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>

#include "support/taped.h"

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

/// All ranks in one dimension, "shard", or in "replicate" x "shard".
inline DeviceMesh mesh_of(RankContext& r, int replicas = 1) {
  const MeshDim shard{"shard", r.world->size() / replicas};
  return replicas == 1 ? DeviceMesh(r.world, {shard}) : DeviceMesh(r.world, {{"replicate", replicas}, shard});
}

/// y = x + down(gelu(up(norm(x)))), widths chosen by the caller.
struct ToyBlock : nn::Module<ToyBlock> {
  ToyBlock(int64_t width, int64_t hidden)
      : norm_(param("norm.weight", {width}, constant(1))),
        up_(param("up.weight", {hidden, width}, normal(0.2f))),
        down_(param("down.weight", {width, hidden}, normal(0.2f))) {}
  virtual nn::Var forward(const nn::Var& x) {
    return nn::add_linear(x, nn::linear_gelu(nn::rms_norm(x, norm_), up_), down_);
  }
  Parameter norm_, up_, down_;
};

/// Input i32 tokens [1, rows] -> embedding -> blocks -> head -> loss_scale * the sum of the cross-entropy
/// losses [rows].
struct ToyModel : nn::Module<ToyModel> {
  static constexpr int64_t kVocab = 11;
  ToyModel(int64_t width, int64_t hidden, int blocks) {
    table_ = param("embed.weight", {kVocab, width}, normal(0.5f));
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(std::make_shared<ToyBlock>(width, hidden));
      child("blocks." + std::to_string(i), *blocks_.back());
    }
    gain_ = param("gain.weight", {1}, constant(1));
    head_ = param("head.weight", {kVocab, width}, normal(0.2f));
  }
  nn::Var forward(const nn::Var& tokens) {
    nn::Var x = nn::embedding(tokens, table_);
    // One element, whose gradient is zero.
    x = with_gradients(x, {gain_}, [this] {
      if (gain_.trainable()) gain_.grad();
    });
    for (auto& b : blocks_) x = (*b)(x);
    const nn::CrossEntropy loss = nn::cross_entropy(nn::linear(x, head_), targets, loss_scale);
    losses = loss.losses;
    return loss.objective;
  }
  Tensor targets;
  float loss_scale = 1;
  Tensor losses;  // of the latest forward
  std::vector<std::shared_ptr<ToyBlock>> blocks_;
  Parameter table_, gain_, head_;
};

struct ToyRun {
  int ranks = 1, replicas = 1;
  int64_t width = 13, hidden = 29;
  int blocks = 3;
  int steps = 4, accumulate = 1;
  int64_t rows = 24;  // tokens of a step, over all ranks
  Algorithm optimizer = Algorithm::adamw;
  double clip = 0.5;
  bool clip_in_update = false;
  FullyShardOptions options = {};
  RootOptions root = {};
  MuonOptions muon = {};
  /// Called on every rank before wrapping, after routing, and after every step.
  std::function<void(ToyModel&)> before = {}, after_step = {};
  /// Starts the ranks; launch() when null.
  std::function<void(int, const std::function<void(RankContext&)>&)> launcher = {};
  /// Called on every rank at the end.
  std::function<void(ToyModel&, RankContext&)> at_end = {};
};

struct ToyResult {
  std::vector<double> losses;
  std::vector<float> norms;
  std::vector<int64_t> zeros;
  std::vector<std::vector<float>> weights;  // named_parameters() order
};

ToyResult run_toy(const ToyRun& run);

}  // namespace sherd::test
