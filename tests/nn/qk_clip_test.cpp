// Attention that notes its largest logits, and the clip that reads them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "training.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

constexpr int kClipHeads = 4, kKeyHeads = 2, kHeadDim = 4;
constexpr double kTau = 2;

// Attention over two sequences of three rows, with weights large enough that some heads' logits exceed tau.
struct AttentionNet : nn::Module<AttentionNet> {
  AttentionNet() {
    qkv = param("qkv.weight", {(kClipHeads + 2 * kKeyHeads) * kHeadDim, kWidth}, normal(0.6f));
    out = param("out.weight", {4, kClipHeads * kHeadDim}, normal(0.3f));
    maxima = std::make_shared<LogitMaxima>(
        AttentionHeads::fused("attention", qkv, {}, kClipHeads, kKeyHeads, kHeadDim));
  }
  Var forward(const Var& x) {
    const auto attend = [this](const Var& in) {
      return nn::attention(nn::linear(in, qkv), {.batch = 2,
                                                 .heads = kClipHeads,
                                                 .kv_heads = kKeyHeads,
                                                 .max_logits = maxima->values(in.device())});
    };
    return nn::linear(recompute ? nn::recompute(attend, x) : attend(x), out);
  }
  Parameter qkv, out;
  std::shared_ptr<LogitMaxima> maxima;
  bool recompute = false;
};

struct Clipped {
  explicit Clipped(RankContext& rank, Strategy strategy)
      : routing(route(net, {.optimizer = Algorithm::muon})) {
    fully_shard(net, DeviceMesh(rank.world, {{"shard", rank.world->size()}}), {.strategy = strategy});
    optimizer.emplace(net, routing, OptimizerOptions{});
    optimizer->after_update(std::make_shared<QkClip>(
        net, std::vector<std::shared_ptr<LogitMaxima>>{net.maxima}, QkClipOptions{.tau = kTau}));
  }
  AttentionNet net;
  Routing routing;
  std::optional<Optimizer> optimizer;
  Tape tape;
};

TEST(QkClipOnTheTape, TrainsTheSameBitsUnderAllStrategiesWithAndWithoutRecomputation) {
  for (const int ranks : {1, 3, 4}) {
    std::map<std::string, std::vector<float>> want;
    for (const bool recompute : {false, true})
      for (const Strategy strategy : kStrategies)
        launch(ranks, [&](RankContext& rank) {
          Clipped c(rank, strategy);
          c.net.recompute = recompute;
          for (int i = 0; i < 3; ++i) {
            {
              const Accumulate microbatch(c.net, GradientSync::last);
              c.tape.backward(loss_of(c.net(c.tape.input(rows(rank, static_cast<uint64_t>(2 * i)))), 0));
            }
            c.tape.backward(loss_of(c.net(c.tape.input(rows(rank, static_cast<uint64_t>(2 * i + 1)))), 0));
            c.optimizer->step(0.05);
          }
          const auto weights = whole_weights(c.net, rank);
          if (rank.world->rank() != 0) return;
          if (want.empty()) want = weights;
          EXPECT_EQ(weights, want) << fmt::format("{} on {}, recompute {}", name_of(strategy), ranks,
                                                  recompute);
        });
  }
}

// An evaluation, on the tape in evaluation mode or off it, sees rows whose logits are larger than those of training.
TEST(QkClipOnTheTape, EvaluationBetweenStepsChangesNothingThatIsTrained) {
  std::map<std::string, std::vector<float>> want;
  for (const std::string evaluated :
       {"never", "off the tape", "off the tape in training mode", "on the tape"})
    launch(2, [&](RankContext& rank) {
      Clipped c(rank, Strategy::optim_grads_params);
      for (int i = 0; i < 2; ++i) {
        c.tape.backward(loss_of(c.net(c.tape.input(rows(rank, static_cast<uint64_t>(i)))), 0));
        const Tensor large = rows(rank, 7);
        ops::scale(rank.device->compute(), large, 3);
        c.net.set_training(evaluated == "off the tape in training mode");
        if (evaluated.starts_with("off")) c.net(Var(large));
        if (evaluated == "on the tape") c.net(c.tape.input(large));
        c.net.set_training(true);
        c.optimizer->step(0.05);
      }
      const auto weights = whole_weights(c.net, rank);
      if (rank.world->rank() != 0) return;
      if (want.empty()) want = weights;
      EXPECT_EQ(weights, want) << "evaluated " << evaluated;
    });
}

// Without an update, the largest logits of the same rows are those that the clip has left.
TEST(QkClipOnTheTape, LogitsAreBroughtToTauAndOthersLeft) {
  launch(2, [](RankContext& rank) {
    Clipped c(rank, Strategy::optim_grads_params);
    Stream& s = rank.device->compute();
    const auto forward = [&] {
      c.net.maxima->reset();
      const Var loss = loss_of(c.net(c.tape.input(rows(rank, 1))), 0);
      Tensor largest = Tensor::empty(*rank.device, {kClipHeads}, DType::f32, "test");
      ops::copy(s, largest, c.net.maxima->values(*rank.device));
      rank.world->all_reduce(s, largest, ReduceOp::max);
      return std::pair(loss, ops::to_floats(s, largest));
    };
    const auto [loss, before] = forward();
    c.tape.backward(loss);
    c.optimizer->step(0);
    const std::vector<float> after = forward().second;
    c.tape.clear();
    EXPECT_GT(*std::max_element(before.begin(), before.end()), kTau);
    EXPECT_LT(*std::min_element(before.begin(), before.end()),
              *std::max_element(before.begin(), before.end()));
    // Each logit is a sum of kHeadDim products of sums of kWidth, whose factors were rounded once more.
    const double bound =
        4 * (kHeadDim + 2 * kWidth) * 0x1p-24 * *std::max_element(before.begin(), before.end());
    for (size_t h = 0; h < after.size(); ++h)
      EXPECT_NEAR(after[h], std::min(static_cast<double>(before[h]), kTau), bound) << "head " << h;
  });
}

}  // namespace
}  // namespace sherd::test
