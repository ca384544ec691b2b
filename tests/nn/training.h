// Short trainings of a model on the tape, and what they are compared by.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nets.h"

namespace sherd::test {

using Weights = std::map<std::string, std::vector<float>>;
inline constexpr std::array kStrategies = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                           Strategy::optim_grads_params};

struct Trained {
  Weights weights;
  CommCounts counts;  // of the last step
};

using Step = std::function<void(TapeNet&, nn::Tape&, RankContext&, int step)>;

// Three steps of AdamW; what `step` does leaves gradients.
inline Trained train(int ranks, const FullyShardOptions& options, const TapeNet::Use& use, const Step& step,
                     const std::function<void(TapeNet&)>& change = {}, const RootOptions& root = {}) {
  Trained trained;
  launch(ranks, [&](RankContext& rank) {
    TapeNet net;
    if (use) net.use = use;
    if (change) change(net);
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    for (auto& [name, p] : net.named_parameters())
      if (options.layout == LayoutPolicy::whole_param && p.shape().size() == 2) p.set_cut(CutClass::row);
    shard(net, rank, options, root);
    Optimizer optimizer(net, routing, {});
    nn::Tape tape;
    CommCounts before;
    for (int i = 0; i < 3; ++i) {
      before = rank.world->counts();
      step(net, tape, rank, i);
      clip_grad_norm(net, 1, {.in_update = options.grad_dtype != DType::f32});
      optimizer.step(0.05);
    }
    CommCounts after = rank.world->counts();
    const Weights weights = whole_weights(net, rank);
    if (rank.world->rank() != 0) return;
    for (auto& [name, count] : before) after[name].calls -= count.calls;
    trained = {weights, after};
  });
  return trained;
}

/// The arrangements of a strategy whose matrices are in buckets that span units: in one, and in small ones.
inline std::vector<FullyShardOptions> bucketed(Strategy strategy) {
  std::vector<FullyShardOptions> all;
  for (const int64_t size : {0, 1})
    all.push_back({.strategy = strategy, .layout = LayoutPolicy::whole_param, .bucket_elements = size});
  return all;
}

inline nn::Var loss_of(const nn::Var& y, uint64_t salt) {
  Tensor target = Tensor::empty(y.device(), y.shape(), DType::f32, "test");
  ops::random_normal(y.stream(), target, 0, 5, "target" + std::to_string(salt), 0, 1);
  return nn::mean_squared_error(y, target);
}

inline void plain_step(TapeNet& net, nn::Tape& tape, RankContext& rank, int i) {
  tape.backward(loss_of(net(tape.input(rows(rank, static_cast<uint64_t>(i)))), 0));
}

inline double largest_difference(const Weights& a, const Weights& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(values[i]) - b.at(name).at(i)));
  return worst;
}

}  // namespace sherd::test
