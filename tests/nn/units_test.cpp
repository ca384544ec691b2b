// Wrapped modules on a tape: when units are gathered and reduced, and that it changes no bit.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "support/message_of.h"
#include "training.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

// The same model, whose units' verbs are called by hand: each block has a tape of its own, without units.
struct HandNet : ModuleBase {
  HandNet() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<ToyBlock>(kWidth, kHidden));
      child("blocks." + std::to_string(i), *blocks.back());
    }
    head = param("head.weight", {4, kWidth}, normal(0.3f));
  }
  void step(const Tensor& in) {
    std::vector<Taped> tapes(blocks.size());
    Tensor x = in;
    unit()->pre_forward(ForwardKind::recorded);
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i]->unit()->pre_forward(ForwardKind::recorded);
      tapes[i].x = tapes[i].tape.leaf(x);
      tapes[i].y = blocks[i]->forward(tapes[i].x);  // a call would use the unit's verbs itself
      x = tapes[i].y.value();
      blocks[i]->unit()->post_forward();
    }
    Taped last;
    last.x = last.tape.leaf(x);
    last.y = loss_of(nn::linear(last.x, head), 0);
    unit()->post_forward();
    unit()->pre_backward();
    Tensor dx = last.backward();
    for (size_t i = blocks.size(); i-- > 0;) {
      blocks[i]->unit()->pre_backward();
      dx = tapes[i].backward(dx);
      blocks[i]->unit()->post_backward();
    }
    unit()->post_backward();
  }
  std::vector<std::unique_ptr<ToyBlock>> blocks;
  Parameter head;
};

TEST(TapeUnits, TrainTheBitsAndIssueTheCollectivesOfTheHandWrittenBackward) {
  for (const Strategy strategy : kStrategies) {
    Trained hand;
    launch(3, [&](RankContext& rank) {
      HandNet net;
      const Routing routing = route(net, {.optimizer = Algorithm::adamw});
      const DeviceMesh mesh(rank.world, {{"shard", 3}});
      for (auto& b : net.blocks) fully_shard(*b, mesh, {.strategy = strategy});
      fully_shard(net, mesh, {.strategy = strategy});
      Optimizer optimizer(net, routing, {});
      CommCounts before;
      for (int i = 0; i < 3; ++i) {
        before = rank.world->counts();
        net.step(rows(rank, static_cast<uint64_t>(i)));
        clip_grad_norm(net, 1);
        optimizer.step(0.05);
      }
      CommCounts after = rank.world->counts();
      const Weights weights = whole_weights(net, rank);
      if (rank.world->rank() != 0) return;
      for (auto& [name, count] : before) after[name].calls -= count.calls;
      hand = {weights, after};
    });
    const Trained tape = train(3, {.strategy = strategy}, {}, plain_step);
    EXPECT_EQ(tape.weights, hand.weights) << name_of(strategy);
    for (auto& [name, count] : hand.counts)
      EXPECT_EQ(tape.counts.at(name).calls, count.calls) << name << " under " << name_of(strategy);
  }
}

// Uses of a model that a step may have, in one backward.
struct Usage {
  const char* name;
  TapeNet::Use use;
  Step step;
  std::function<void(TapeNet&)> change = {};
  bool allow_unused = false;
};

std::vector<Usage> usages() {
  const TapeNet::Use chain = TapeNet().use;
  return {
      {"plain", chain, plain_step},
      {"one block called three times",
       [](TapeNet& net, Var x) {
         for (int i = 0; i < 3; ++i) x = net.block(1)(net.block(0)(x));
         return net.block(2)(x);
       },
       plain_step},
      {"siamese: the model twice, then one backward", chain,
       [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
         const Var a = net(tape.input(rows(rank, 2 * static_cast<uint64_t>(i))));
         const Var b = net(tape.input(rows(rank, 2 * static_cast<uint64_t>(i) + 1)));
         tape.backward(loss_of(a + -1 * b, 0) + 0.5f * loss_of(a, 1));
       }},
      {"a result that nobody uses",
       [](TapeNet& net, Var x) {
         x = net.block(0)(x);
         net.block(1)(x);
         return net.block(2)(net.block(1)(x));
       },
       plain_step},
      {"a unit of which no result is used",
       [](TapeNet& net, Var x) {
         net.block(1)(x);
         return net.block(2)(net.block(0)(x));
       },
       plain_step,
       {},
       true},
      {"a unit that is not called",
       [](TapeNet& net, Var x) { return net.block(2)(net.block(0)(x)); },
       plain_step,
       {},
       true},
      {"a frozen tower", chain, plain_step,
       [](TapeNet& net) {
         for (Parameter p : net.block(0).own_parameters()) p.freeze();
       }},
      {"a frozen block in the middle", chain, plain_step,
       [](TapeNet& net) {
         for (Parameter p : net.block(1).own_parameters()) p.freeze();
       }},
      {"blocks frozen in some steps", chain,
       [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
         std::vector<Parameter> some{net.block(0).up_, net.block(2).norm_};
         for (const Parameter& p : net.block(1).own_parameters()) some.push_back(p);
         runtime_of(net).set_frozen(some, i == 1);
         plain_step(net, tape, rank, i);
       }},
      {"a block without gradient",
       [](TapeNet& net, Var x) {
         {
           nn::NoGrad scope(*x.tape());
           x = net.block(0)(x);
         }
         return net.block(2)(net.block(1)(x));
       },
       plain_step,
       [](TapeNet& net) {
         for (Parameter p : net.block(0).own_parameters()) p.freeze();
       }},
  };
}

TEST(TapeUnits, EveryUsageHasTheBitsOfZero0UnderAllStrategies) {
  for (const Usage& u : usages())
    for (const int ranks : {1, 3, 4}) {
      Trained zero0;
      const RootOptions root{.allow_unused = u.allow_unused};
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, {}", u.name, ranks, name_of(strategy)));
        const Trained t = train(ranks, {.strategy = strategy}, u.use, u.step, u.change, root);
        if (strategy == Strategy::no_shard) zero0 = t;
        EXPECT_EQ(t.weights, zero0.weights);
      }
      for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads})
        for (const FullyShardOptions& o : bucketed(strategy)) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {}, buckets of {}", u.name, ranks, name_of(strategy),
                                   o.bucket_elements));
          EXPECT_EQ(train(ranks, o, u.use, u.step, u.change, root).weights, zero0.weights);
        }
    }
}

// Frozen by set_frozen() in the middle of a training.
TEST(TapeUnits, FrozenParametersHaveNoGradientAndLeaveTheOthersTheirs) {
  struct Case {
    const char* name;
    std::function<std::vector<Parameter>(TapeNet&)> which;
  };
  const auto all_norms = [](TapeNet& net) {
    return std::vector{net.block(0).norm_, net.block(1).norm_, net.block(2).norm_};
  };
  const auto all_blocks = [](TapeNet& net) {
    std::vector<Parameter> all;
    for (auto& b : net.blocks)
      for (const Parameter& p : b->own_parameters()) all.push_back(p);
    return all;
  };
  const std::vector<Case> cases = {
      {"a weight beside others", [](TapeNet& net) { return std::vector{net.block(1).up_}; }},
      {"norms", all_norms},
      {"the first block", [](TapeNet& net) { return net.block(0).own_parameters(); }},
      {"a block between others", [](TapeNet& net) { return net.block(1).own_parameters(); }},
      {"all blocks", all_blocks},
      {"the head", [](TapeNet& net) { return std::vector{net.head}; }}};
  const auto check = [](RankContext& rank, Strategy strategy, bool recomputes, int microbatches,
                        const Case& c) {
    TapeNet net;
    for (auto& b : net.blocks) b->set_recompute(recomputes);
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    shard(net, rank, {.strategy = strategy});
    Optimizer optimizer(net, routing, {.weight_decay = 0.1});
    ShardRuntime& runtime = runtime_of(net);
    Tape tape;
    const auto gradients = [&](int step) {
      for (int m = 0; m < microbatches; ++m) {
        runtime.set_last_microbatch(m == microbatches - 1);
        tape.backward(loss_of(net(tape.input(rows(rank, static_cast<uint64_t>(3 * step + m)))), 0));
      }
      runtime.wait_gradients();
      Weights all;
      for (auto& [name, p] : net.named_parameters())
        if (p.group().grad_final(p.index_in_group()))
          all[name] = ops::to_floats(rank.device->compute(), p.grad_shard());
      return all;
    };
    const std::vector<Parameter> frozen = c.which(net);
    for (int step = 0; step < 2; ++step) {
      const Weights all = gradients(step);
      EXPECT_EQ(all.size(), 10u);
      zero_grad(net);
      runtime.set_frozen(frozen, true);
      const Weights before = whole_weights(net, rank), got = gradients(step);
      EXPECT_EQ(got.size(), all.size() - frozen.size());
      for (auto& [name, values] : got) EXPECT_EQ(values, all.at(name)) << name;
      clip_grad_norm(net, 1);
      optimizer.step(0.05);
      const Weights after = whole_weights(net, rank);
      for (auto& [name, values] : after) EXPECT_EQ(values != before.at(name), got.contains(name)) << name;
      runtime.set_frozen(frozen, false);
    }
  };
  for (const Strategy strategy : kStrategies)
    for (const bool recomputes : {false, true})
      for (const Case& c : cases)
        for (const int ranks : {1, 3}) {
          const int microbatches = recomputes ? 3 : 1;
          SCOPED_TRACE(fmt::format("{}, {} ranks, {}, {} microbatches", c.name, ranks, name_of(strategy),
                                   microbatches));
          launch(ranks, [&](RankContext& rank) { check(rank, strategy, recomputes, microbatches, c); });
        }
}

TEST(TapeUnits, AModelThatIsFrozenAltogetherHasNoBackward) {
  launch(2, [](RankContext& rank) {
    TapeNet net;
    shard(net, rank, {});
    std::vector<Parameter> all;
    for (auto& [name, p] : net.named_parameters()) all.push_back(p);
    runtime_of(net).set_frozen(all, true);
    Tape tape;
    const Var leaf = tape.leaf(rows(rank, 1));
    EXPECT_FALSE(net(tape.input(rows(rank, 1))).requires_grad());
    tape.backward(loss_of(net(leaf), 0));
    EXPECT_TRUE(tape.gradient(leaf).defined());
    runtime_of(net).set_frozen(all, false);
    plain_step(net, tape, rank, 0);
    EXPECT_TRUE(net.head.group().grads_final());
  });
}

TEST(TapeUnits, AUnitReducesOnceHoweverOftenItIsCalled) {
  const auto reductions = [](const TapeNet::Use& use, const Step& step) {
    const Trained t = train(3, {.strategy = Strategy::optim_grads_params}, use, step);
    return t.counts.at("reduce_scatter").calls;
  };
  for (const Usage& u : usages()) {
    if (u.change || u.allow_unused)
      continue;  // frozen units reduce nothing; unused ones are counted otherwise
    EXPECT_EQ(reductions(u.use, u.step), 4) << u.name;  // three blocks and the root
  }
}

/// The strategies of a family, with buckets or without, train the same bits; both families the same to rounding.
void expect_families_agree(const Step& step) {
  std::map<Strategy, Trained> t;
  for (const Strategy strategy : kStrategies) t[strategy] = train(3, {.strategy = strategy}, {}, step);
  for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads})
    for (const FullyShardOptions& o : bucketed(strategy))
      EXPECT_EQ(train(3, o, {}, step).weights, t[strategy].weights)
          << name_of(strategy) << ", " << o.bucket_elements;
  EXPECT_EQ(t[Strategy::no_shard].weights, t[Strategy::optim].weights);
  EXPECT_EQ(t[Strategy::optim_grads].weights, t[Strategy::optim_grads_params].weights);
  EXPECT_LT(largest_difference(t[Strategy::no_shard].weights, t[Strategy::optim_grads].weights), 1e-4);
}

TEST(TapeUnits, MicrobatchesAddUpUnderEveryStrategyOfAFamily) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    for (int m = 0; m < 3; ++m) {
      runtime_of(net).set_last_microbatch(m == 2);
      tape.backward(loss_of(net(tape.input(rows(rank, static_cast<uint64_t>(3 * i + m)))), 0));
    }
  };
  expect_families_agree(step);
}

TEST(TapeUnits, AnExceptionAnywhereLeavesTheModelUsable) {
  for (const Strategy strategy : kStrategies)
    for (const bool in_backward : {false, true}) {
      const Step step = [&](TapeNet& net, Tape& tape, RankContext& rank, int i) {
        net.block(1).fails = !in_backward;
        try {
          Var x = tape.leaf(rows(rank, 77));
          if (in_backward)
            x = nn::function(
                {x}, [&](Stream&) { return x.value(); },
                [](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
                  throw std::runtime_error("a backward that fails");
                });
          Var y = net(x);
          if (in_backward) y = loss_of(net(x) + y, 0);
          tape.backward(y);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const std::runtime_error& e) {
          EXPECT_THAT(e.what(), HasSubstr("that fails"));
        }
        net.block(1).fails = false;
        tape.clear();
        reset_step(net);
        EXPECT_EQ(tape.size(), 0);
        plain_step(net, tape, rank, i);
      };
      SCOPED_TRACE(fmt::format("{}, in {}", name_of(strategy), in_backward ? "backward" : "forward"));
      EXPECT_EQ(train(2, {.strategy = strategy}, {}, step).weights,
                train(2, {.strategy = strategy}, {}, plain_step).weights);
    }
}

TEST(TapeUnits, ABatchWhoseBackwardIsNotWantedIsDroppedByClear) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    loss_of(net(tape.input(rows(rank, 99))), 0);  // too large, say
    tape.clear();
    plain_step(net, tape, rank, i);
  };
  EXPECT_EQ(train(3, {}, {}, step).weights, train(3, {}, {}, plain_step).weights);
}

// A model with its optimizer, step by step.
struct Training {
  explicit Training(RankContext& r) : rank(r), routing(route(net, {.optimizer = Algorithm::adamw})) {
    shard(net, rank, {});
    optimizer.emplace(net, routing, OptimizerOptions{});
  }
  void expect_that_only_a_reset_lets_it_step() {
    EXPECT_THROW(optimizer->step(0.1), InvalidArgument);
    reset_step(net);
    plain_step(net, tape, rank, 0);
    EXPECT_NO_THROW(optimizer->step(0.1));
  }

  RankContext& rank;
  TapeNet net;
  Routing routing;
  std::optional<Optimizer> optimizer;
  Tape tape;
};

std::string refusal(const std::function<void()>& f) {
  return message_of<InvalidArgument>([&] { f(); });
}

TEST(TapeUnits, AnExceptionBetweenTheCallsOfAUnitEndsTheStep) {
  launch(2, [](RankContext& rank) {
    Training run(rank);
    const Var first = run.net(run.tape.input(rows(rank, 1)));
    const Var between = nn::function(
        {first}, [&](Stream&) { return rows(rank, 2); },
        [](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
          throw std::runtime_error("between");
        });
    EXPECT_THROW(run.tape.backward(loss_of(run.net(between), 0)), std::runtime_error);
    EXPECT_FALSE(rank.world->counts().contains("reduce_scatter")) << "nothing is reduced";
    run.expect_that_only_a_reset_lets_it_step();
  });
}

TEST(TapeUnits, TwoTapesOnOneModelGoBackwardOneAfterTheOther) {
  const Step step = [](TapeNet& net, Tape& a, RankContext& rank, int i) {
    Tape b;
    const Var x = loss_of(net(a.input(rows(rank, 2 * static_cast<uint64_t>(i)))), 0);
    const Var y = loss_of(net(b.input(rows(rank, 2 * static_cast<uint64_t>(i) + 1))), 0);
    a.backward(x);
    b.backward(y);
  };
  expect_families_agree(step);
}

TEST(TapeUnits, AForwardThatAnotherTapeHoldsIsNamedByTheStep) {
  launch(2, [](RankContext& rank) {
    Training run(rank);
    Tape other;
    const Var kept = run.net(other.input(rows(rank, 1)));
    plain_step(run.net, run.tape, rank, 0);
    EXPECT_THAT(
        refusal([&] { run.optimizer->step(0.1); }),
        AllOf(HasSubstr("1 recorded forward(s) of the root"), HasSubstr("nn::Tape"), HasSubstr("clear()")));
  });
}

TEST(TapeUnits, AForwardThatAnotherTapeDropsLateCostsNothing) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    Tape other;
    net(other.input(rows(rank, 99)));
    plain_step(net, tape, rank, i);
  };
  for (const Strategy strategy : kStrategies)
    EXPECT_EQ(train(3, {.strategy = strategy}, {}, step).weights,
              train(3, {.strategy = strategy}, {}, plain_step).weights);
  for (const FullyShardOptions& o : bucketed(Strategy::optim_grads))
    EXPECT_EQ(train(3, o, {}, step).weights, train(3, o, {}, plain_step).weights) << o.bucket_elements;
}

TEST(TapeUnits, ATapeFromBeforeTheStepTakesNoBackwardOfTheNextStep) {
  for (const bool recomputed : {false, true})
    for (const bool destroyed : {false, true}) {
      SCOPED_TRACE(fmt::format("recomputed {}, destroyed {}", recomputed, destroyed));
      launch(2, [&](RankContext& rank) {
        Training run(rank), plain(rank);
        for (size_t b = 0; b < 3; ++b) run.net.block(b).set_recompute(recomputed);
        plain_step(run.net, run.tape, rank, 0);
        std::optional<Tape> other(std::in_place);
        const Var kept = run.net(other->input(rows(rank, 1)));
        run.optimizer->step(0.1);
        const Var loss = loss_of(run.net(run.tape.input(rows(rank, 2))), 0);
        if (destroyed) {
          other.reset();
        } else {
          EXPECT_THAT(refusal([&] { other->backward(nn::sum(kept)); }),
                      AllOf(HasSubstr("unit 'root'"), HasSubstr("before the latest optimizer step")));
        }
        run.tape.backward(loss);
        run.optimizer->step(0.1);
        plain_step(plain.net, plain.tape, rank, 0);
        plain.optimizer->step(0.1);
        plain_step(plain.net, plain.tape, rank, 2);
        plain.optimizer->step(0.1);
        EXPECT_EQ(whole_weights(run.net, rank), whole_weights(plain.net, rank));
      });
    }
}

TEST(TapeUnits, AUnitWhoseForwardAnotherTapeHoldsSaysThatItsGradientsAreFinal) {
  launch(2, [](RankContext& rank) {
    Training run(rank);
    Tape other;
    const Var kept = run.net.block(0)(other.input(rows(rank, 1)));
    plain_step(run.net, run.tape, rank, 0);
    EXPECT_THAT(refusal([&] { other.backward(nn::sum(kept)); }),
                AllOf(HasSubstr("unit 'blocks.0'"), HasSubstr("its gradients are final")));
  });
}

// Positions outside of any tape, looked up in a table of the root's or of a unit's own.
struct Positions : nn::Module<Positions> {
  Parameter table = param("weight", {kRows, kWidth}, normal(0.3f));
  Var forward(const Var& index) { return nn::embedding(index, table); }
};
struct NetWithPositions : nn::Module<NetWithPositions> {
  NetWithPositions() {
    child("positions", positions);
    child("block", block);
  }
  Var forward(const Var& x) {
    Tensor index = Tensor::empty(x.device(), {1, kRows}, DType::i32, "index");
    std::vector<int32_t> places(kRows);
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
    ops::copy_from_host(x.stream(), index, places.data(), index.nbytes());
    const auto constant_of = [&](const Tensor& t) { return on_tape ? x.tape()->input(t) : Var(t); };
    const Var y = constant_of(index);
    const auto extra = [this, ones = constant_of(x.value())](const Var& i) {
      return positions(i) + nn::embedding(i, own) + nn::linear(block(ones), square);
    };
    return nn::linear(x, square) +
           (recomputed ? nn::recompute([extra, y](const Var& v) { return v + extra(y); }, x) : extra(y));
  }
  Positions positions;
  ToyBlock block{kWidth, kHidden};
  Parameter own = param("own", {kRows, kWidth}, normal(0.3f)),
            square = param("square", {kWidth, kWidth}, normal(0.3f));
  bool on_tape = false, recomputed = false;
};

TEST(TapeUnits, ParametersOfFunctionsWhoseInputsAreOnNoTapeTrain) {
  for (const bool wrapped : {false, true})
    for (const bool recomputed : {false, true}) {
      std::map<bool, Weights> weights;
      for (const bool on_tape : {false, true})
        launch(2, [&](RankContext& rank) {
          NetWithPositions net;
          net.on_tape = on_tape;
          net.recomputed = recomputed;
          const Routing routing = route(net, {.optimizer = Algorithm::adamw});
          const DeviceMesh mesh(rank.world, {{"shard", 2}});
          if (wrapped) fully_shard(net.positions, mesh, {});
          if (wrapped) fully_shard(net.block, mesh, {});
          fully_shard(net, mesh, {});
          Optimizer optimizer(net, routing, {});
          Tape tape;
          for (int i = 0; i < 2; ++i) {
            tape.backward(loss_of(net(tape.input(rows(rank, static_cast<uint64_t>(i)))), 0));
            optimizer.step(0.05);
          }
          net.set_training(false);
          EXPECT_FALSE(net(tape.input(rows(rank, 1))).requires_grad());
          EXPECT_EQ(tape.size(), 0);
          const Weights w = whole_weights(net, rank);
          if (rank.world->rank() == 0) weights[on_tape] = w;
        });
      EXPECT_EQ(weights[false], weights[true]) << "wrapped " << wrapped << ", recomputed " << recomputed;
    }
}

TEST(TapeUnits, AUnitCalledOutsideOfTheRootIsNamed) {
  launch(2, [](RankContext& rank) {
    Training run(rank);
    const Var outside = run.net.block(0)(run.tape.input(rows(rank, 1)));
    EXPECT_THAT(message_of<InvalidArgument>([&] { run.tape.backward(loss_of(run.net(outside), 0)); }),
                HasSubstr("unit 'blocks.0', which was called outside of the root's forward"));
    run.expect_that_only_a_reset_lets_it_step();
  });
}

TEST(TapeUnits, AForwardPastTheCallOfItsModuleIsNamedWithTheCall) {
  launch(2, [](RankContext& rank) {
    TapeNet net;
    shard(net, rank, {});
    Tape tape;
    EXPECT_THAT(message_of<InvalidArgument>([&] { net.block(1).forward(tape.input(rows(rank, 1))); }),
                AllOf(HasSubstr("unit 'blocks.1' is unsharded: call the module as module(x), not "
                                "module.forward(x)"),
                      HasSubstr("Unit::unshard()")));
  });
}

TEST(TapeUnits, ATapeThatWasNotClearedAfterAResetDoesNotKeepTheNextStepFromEnding) {
  const Step step = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    net(tape.input(rows(rank, 99)));
    reset_step(net);
    plain_step(net, tape, rank, i);
  };
  EXPECT_EQ(train(3, {}, {}, step).weights, train(3, {}, {}, plain_step).weights);
}

TEST(TapeUnits, TwoModelsWithTapesOfTheirOwnPlayAgainstEachOther) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
    launch(3, [&](RankContext& rank) {
      struct Judge : nn::Module<Judge> {
        Parameter w = param("weight", {1, 4}, normal(0.5f));
        Var forward(const Var& x) { return nn::linear(x, w); }
      };
      TapeNet maker;
      Judge judge;
      const Routing make_routes = route(maker, {.optimizer = Algorithm::adamw}),
                    judge_routes = route(judge, {.optimizer = Algorithm::adamw});
      shard(maker, rank, {.strategy = strategy});
      fully_shard(judge, DeviceMesh(rank.world, {{"shard", 3}}), {.strategy = strategy});
      Optimizer makes(maker, make_routes, {}), judges(judge, judge_routes, {});
      Tape of_maker, of_judge;
      for (int i = 0; i < 3; ++i) {
        const Var made = maker(of_maker.input(rows(rank, static_cast<uint64_t>(i))));
        of_judge.backward(nn::mean(judge(of_judge.input(made.value()))));
        judges.step(0.01);
        of_maker.backward(nn::mean(judge(made)));
        makes.step(0.01);
        reset_step(judge);  // the maker's backward went through the judge, too
      }
      for (auto& [name, values] : whole_weights(maker, rank))
        for (const float v : values) ASSERT_TRUE(std::isfinite(v));
    });
  }
}

TEST(TapeUnits, EvaluationKeepsNothing) {
  launch(2, [](RankContext& rank) {
    TapeNet net;
    shard(net, rank, {});
    Tape tape;
    for (const bool by_scope : {true, false}) {
      std::optional<nn::NoGrad> scope;
      if (by_scope) scope.emplace(tape);
      net.set_training(by_scope);
      const Var y = net(tape.input(rows(rank, 1)));
      EXPECT_FALSE(y.requires_grad());
      EXPECT_EQ(tape.size(), 0);
      for (auto& u : runtime_of(net).units())
        EXPECT_FALSE(u->unsharded() && u->groups()[0]->needs_slot()) << u->name();
    }
  });
}

}  // namespace
}  // namespace sherd::test
