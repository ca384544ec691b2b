// Gradient accumulation as a scope: what is summed over ranks, when, and the bits of it.
#include <fmt/format.h>

#include "support/message_of.h"
#include "training.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

constexpr int kMicrobatches = 3;

// `used`: the blocks of each microbatch.
Step accumulated(GradientSync sync, std::vector<std::vector<size_t>> used = {}) {
  return [sync, used](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    const auto microbatch = [&](int m) {
      if (!used.empty())
        net.use = [blocks = used[static_cast<size_t>(m)]](TapeNet& n, Var x) {
          for (const size_t b : blocks) x = n.block(b)(x);
          return x;
        };
      tape.backward(loss_of(net(tape.input(rows(rank, static_cast<uint64_t>(kMicrobatches * i + m)))), 0));
    };
    {
      const Accumulate scope(net, sync);
      for (int m = 0; m + 1 < kMicrobatches; ++m) microbatch(m);
    }
    microbatch(kMicrobatches - 1);
  };
}

TEST(Accumulate, BitsAreThoseOfTheFamilyAndOfTheFirstFamilyWhenHeld) {
  for (const int ranks : {1, 3, 4}) {
    std::map<Strategy, Trained> by_strategy;
    for (const Strategy s : kStrategies)
      by_strategy[s] = train(ranks, {.strategy = s}, {}, accumulated(GradientSync::by_strategy));
    EXPECT_EQ(by_strategy[Strategy::no_shard].weights, by_strategy[Strategy::optim].weights);
    EXPECT_EQ(by_strategy[Strategy::optim_grads].weights, by_strategy[Strategy::optim_grads_params].weights);
    EXPECT_LT(largest_difference(by_strategy[Strategy::no_shard].weights,
                                 by_strategy[Strategy::optim_grads].weights),
              1e-4);
    for (const Strategy s : kStrategies)
      EXPECT_EQ(train(ranks, {.strategy = s}, {}, accumulated(GradientSync::last)).weights,
                by_strategy[Strategy::no_shard].weights)
          << name_of(s) << " on " << ranks;
  }
}

// Gradients in 16 bits: bits of a family, also where microbatches leave units out, and in buckets.
TEST(Accumulate, GradientsInSixteenBitsKeepTheBitsOfTheirFamily) {
  for (const int ranks : {1, 3, 4})
    for (const auto& used : {std::vector<std::vector<size_t>>{}, {{1, 2}, {0, 1, 2}, {2, 0, 1}}}) {
      const auto weights = [&](FullyShardOptions o, GradientSync sync, DType dtype = DType::bf16) {
        o.grad_dtype = dtype;
        return train(ranks, o, {}, accumulated(sync, used), {}, {.allow_unused = true}).weights;
      };
      std::map<bool, Weights> of;  // by whether microbatches are summed over ranks
      for (const Strategy s : kStrategies) {
        const bool scatters = ranks > 1 && (s == Strategy::optim_grads || s == Strategy::optim_grads_params);
        SCOPED_TRACE(fmt::format("{} on {}", name_of(s), ranks));
        const Weights got = weights({.strategy = s}, GradientSync::by_strategy);
        EXPECT_EQ(got, of.try_emplace(scatters, got).first->second);
        // An element moves by about the learning rate, 0.05, in each of three steps, in one direction or the other.
        EXPECT_LT(largest_difference(got, weights({.strategy = s}, GradientSync::by_strategy, DType::f32)),
                  2 * 3 * 0.05);
        EXPECT_NE(got, weights({.strategy = s}, GradientSync::by_strategy, DType::f32));
        EXPECT_EQ(weights({.strategy = s, .layout = LayoutPolicy::even_rows}, GradientSync::by_strategy),
                  got);
        for (FullyShardOptions o : bucketed(s)) EXPECT_EQ(weights(o, GradientSync::by_strategy), got);
        if (!scatters) {
          EXPECT_EQ(weights({.strategy = s}, GradientSync::last), got);
        }
      }
      EXPECT_EQ(weights({.strategy = Strategy::optim_grads}, GradientSync::last),
                weights({.strategy = Strategy::optim_grads_params}, GradientSync::last));
    }
}

TEST(Accumulate, GradientsInSixteenBitsAreClippedInTheUpdate) {
  launch(1, [](RankContext& rank) {
    TapeNet net;
    shard(net, rank, {.grad_dtype = DType::bf16});
    Tape tape;
    plain_step(net, tape, rank, 0);
    EXPECT_THAT(message_of<InvalidArgument>([&] { clip_grad_norm(net, 1); }),
                AllOf(HasSubstr("keeps gradients in bf16"), HasSubstr("set ClipOptions::in_update")));
    EXPECT_GT(read_stats(net, clip_grad_norm(net, 0)).norm, 0) << "measures alone";
    EXPECT_THROW(clip_grad_value(net, 1), NotSupported);
  });
}

TEST(Accumulate, HeldGradientsAreReducedOnceAStep) {
  const auto reductions = [](GradientSync sync) {
    return train(3, {.strategy = Strategy::optim_grads_params}, {}, accumulated(sync))
        .counts.at("reduce_scatter")
        .calls;
  };
  EXPECT_EQ(reductions(GradientSync::by_strategy), 4 * kMicrobatches);  // three blocks and the root
  EXPECT_EQ(reductions(GradientSync::last), 4);
}

TEST(Accumulate, UnitsThatSomeMicrobatchesLeaveOutAreReducedAllTheSame) {
  const std::vector<std::vector<size_t>> used = {{0, 1, 2}, {2, 0}, {1}};
  for (const bool reshard : {true, false}) {
    const auto of = [&](Strategy s, GradientSync sync) {
      return train(3, {.strategy = s, .reshard_after_forward = reshard}, {}, accumulated(sync, used)).weights;
    };
    const auto want = of(Strategy::no_shard, GradientSync::by_strategy);
    for (const Strategy s : kStrategies) EXPECT_EQ(of(s, GradientSync::last), want) << name_of(s);
  }
}

TEST(Accumulate, ADroppedStepWithHeldGradientsLeavesNone) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    {
      const Accumulate scope(net, GradientSync::last);
      plain_step(net, tape, rank, 99);
      net.block(1).fails = true;
      EXPECT_THROW(plain_step(net, tape, rank, 98), std::runtime_error);
      net.block(1).fails = false;
    }
    tape.clear();
    reset_step(net);
    plain_step(net, tape, rank, i);
  };
  for (const Strategy s : kStrategies)
    EXPECT_EQ(train(3, {.strategy = s}, {}, step).weights, train(3, {.strategy = s}, {}, plain_step).weights);
}

TEST(Accumulate, ZeroGradDropsHeldGradients) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    {
      const Accumulate scope(net, GradientSync::last);
      plain_step(net, tape, rank, 99);
      zero_grad(net);
    }
    plain_step(net, tape, rank, i);
  };
  for (const Strategy s : kStrategies)
    EXPECT_EQ(train(3, {.strategy = s}, {}, step).weights, train(3, {.strategy = s}, {}, plain_step).weights)
        << name_of(s);
}

TEST(Accumulate, MisuseIsNamed) {
  launch(1, [](RankContext& rank) {
    TapeNet net;
    EXPECT_THROW(Accumulate scope(net), InvalidArgument);
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    shard(net, rank, {});
    Optimizer optimizer(net, routing, {});
    Tape tape;
    {
      const Accumulate scope(net, GradientSync::last);
      EXPECT_THAT(message_of<InvalidArgument>([&] { const Accumulate inner(net); }),
                  HasSubstr("announced already"));
      plain_step(net, tape, rank, 0);
      EXPECT_THROW(optimizer.step(0.1), InvalidArgument) << "no gradient is final";
    }
    plain_step(net, tape, rank, 0);
    EXPECT_NO_THROW(optimizer.step(0.1));
  });
}

}  // namespace
}  // namespace sherd::test
