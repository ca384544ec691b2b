// Experts as a unit of their own inside another: every rank takes part, with or without rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nets.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

constexpr int kMixtureRanks = 4, kParts = 2;
constexpr int64_t kExperts = 4;

struct Experts : nn::Module<Experts> {
  explicit Experts(int index) {
    const auto piece = [&](const char* name, Shape local) {
      return param(name, std::move(local), normal(0.3f)).set_tensor_shard({"expert", 0, kParts, index});
    };
    up = piece("up.weight", {kExperts / kParts, kHidden, kWidth});
    bias = piece("up.bias", {kExperts / kParts, kHidden});
    down = piece("down.weight", {kExperts / kParts, kWidth, kHidden});
  }
  Var forward(const Var& x, const std::vector<int64_t>& offsets) {
    return nn::grouped_linear(nn::gelu(nn::grouped_linear(x, offsets, up, bias)), offsets, down);
  }
  Parameter up, bias, down;
};

/// x + the mixture of x. With `tied` the router is 0, and ties go to the first experts: those of part 1 get no rows.
struct Mixture : nn::Module<Mixture> {
  Mixture(std::shared_ptr<Communicator> expert_ranks, std::shared_ptr<Communicator> all, bool tied)
      : experts(expert_ranks->rank()), ranks(std::move(expert_ranks)), everywhere(std::move(all)) {
    router = param("router.weight", {kExperts, kWidth}, normal(tied ? 0.0f : 0.5f));
    child("experts", experts);
  }
  Var forward(const Var& x) {
    const auto [logits, in] = nn::router_logits(x, router);
    const nn::Routes routes =
        nn::route_top_k(logits, 2, {.weight = balance, .scale = 0.1f, .ranks = everywhere});
    const nn::ExpertExchange exchange(ranks, routes.counts);
    const Var rows = experts(exchange.to_experts(nn::dispatch(in, routes)), exchange.offsets());
    return in + nn::combine(exchange.from_experts(rows), routes);
  }
  Parameter router;
  Experts experts;
  std::shared_ptr<Communicator> ranks, everywhere;
  float balance = 0.1f;
};

using MixtureStep = std::function<Var(Mixture&, Tape&, const Var&)>;
using RankWeights = std::map<std::string, std::vector<float>>;  // "rank name"

struct MixtureSetting {
  Strategy strategy = Strategy::optim_grads_params;
  bool tied = false;
  std::vector<int64_t> rows{6};  // of each rank, repeated
};

// Three steps of AdamW, then the weights of every rank.
RankWeights train_mixture(const MixtureSetting& c, const MixtureStep& objective,
                          const std::function<void(Mixture&, int rank)>& look = {}) {
  RankWeights all;
  std::mutex mutex;
  launch(kMixtureRanks, [&](RankContext& rank) {
    const int me = rank.world->rank();
    const DeviceMesh mesh(rank.world, {{"shard", kMixtureRanks}});
    const DeviceMesh expert_mesh(rank.world, {{"expert_shard", kMixtureRanks / kParts}, {"expert", kParts}});
    Mixture net(expert_mesh.comm("expert"), rank.world->clone(), c.tied);
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    FullyShardOptions o{.strategy = c.strategy}, of_experts = o;
    of_experts.shard_dim = "expert_shard";
    of_experts.gradient_ranks = kMixtureRanks;
    fully_shard(net.experts, expert_mesh, of_experts);
    fully_shard(net, mesh, o);
    Optimizer optimizer(net, routing, {});
    Tape tape;
    for (uint64_t i = 0; i < 3; ++i) {
      const int64_t n = c.rows[static_cast<size_t>(me) % c.rows.size()];
      const Tensor x = Tensor::empty(*rank.device, {n, kWidth}, DType::f32, "test");
      ops::random_normal(x.device().compute(), x, static_cast<int64_t>(i) * 4096 + me * 1024, 7, "data", 0,
                         1);
      tape.backward(objective(net, tape, tape.input(x)));
      if (look && i == 0) look(net, me);
      clip_grad_norm(net, 1);
      optimizer.step(0.02);
    }
    const RankWeights mine = whole_weights(net, rank);
    const std::lock_guard lock(mutex);
    for (auto& [name, w] : mine) all[std::to_string(me) + " " + name] = w;
  });
  return all;
}

Var plain(Mixture& net, Tape&, const Var& x) { return nn::sum(nn::gelu(net(x))); }

constexpr std::array kStrategies = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                    Strategy::optim_grads_params};

void expect_the_same_bits_under_all_strategies(MixtureSetting c, const MixtureStep& step) {
  const RankWeights want = train_mixture({Strategy::no_shard, c.tied, c.rows}, step);
  ASSERT_EQ(want.size(), static_cast<size_t>(kMixtureRanks) * 4);
  for (const Strategy strategy : kStrategies) {
    c.strategy = strategy;
    EXPECT_EQ(train_mixture(c, step), want) << name_of(strategy);
  }
}

TEST(Mixture, StrategiesHaveTheSameBits) { expect_the_same_bits_under_all_strategies({}, plain); }

TEST(Mixture, AlsoWhereRanksOrTheirExpertsHaveNoRows) {
  expect_the_same_bits_under_all_strategies({.tied = true}, plain);
  expect_the_same_bits_under_all_strategies({.rows = {3, 0, 7, 1}}, plain);
  expect_the_same_bits_under_all_strategies({.rows = {0, 0, 2, 0}}, plain);
}

TEST(Mixture, ExpertsWithoutRowsHaveAGradientOfZero) {
  train_mixture({.strategy = Strategy::no_shard, .tied = true}, plain, [](Mixture& net, int rank) {
    Stream& s = runtime_of(net).device().compute();
    for (Parameter p : net.experts.own_parameters()) {
      double squares = 0;
      for (const float g : ops::to_floats(s, p.grad_shard())) squares += static_cast<double>(g) * g;
      if (rank % kParts == 1) {
        EXPECT_EQ(squares, 0) << p.name();
      } else {
        EXPECT_GT(squares, 0) << p.name();
      }
    }
  });
}

TEST(Mixture, IsCalledSeveralTimesInOneBackward) {
  expect_the_same_bits_under_all_strategies({.rows = {3, 0, 7, 1}}, [](Mixture& net, Tape&, const Var& x) {
    return nn::sum(nn::gelu(net(net(x)) + -0.5f * net(x)));
  });
}

// Same as when activations are computed again: an earlier run leaves no state.
TEST(Mixture, AForwardThatRanBeforeChangesNoBit) {
  const MixtureStep twice = [](Mixture& net, Tape& tape, const Var& x) {
    {
      const nn::NoGrad scope(tape);
      plain(net, tape, x);
    }
    return plain(net, tape, x);
  };
  EXPECT_EQ(train_mixture({}, twice), train_mixture({}, plain));
}

TEST(Mixture, ADroppedStepLeavesNoState) {
  const MixtureStep dropped = [](Mixture& net, Tape& tape, const Var& x) {
    const Tensor in = x.value();
    plain(net, tape, x);
    tape.clear();
    reset_step(net);
    return plain(net, tape, tape.input(in));
  };
  EXPECT_EQ(train_mixture({}, dropped), train_mixture({}, plain));
}

}  // namespace
}  // namespace sherd::test
