// Averages of weights: value by value, the same bits on any arrangement, and in the place of the weights.

#include <sherd/optim/averaged.h>

#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/fsdp/noise_runs.h>

#include "optim/matrix_rules.h"
#include "support/message_of.h"
#include "support/rig.h"
#include "support/sgd.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr double kDecay = 0.75;
const Algorithm kEveryAlgorithm[] = {Algorithm::adamw, Algorithm::muon, NorMuon::kName, Soap::kName};

OptimizerOptions options_of(const Algorithm& algorithm, DType dtype, Place place = Place::device) {
  OptimizerOptions o{.weight_decay = 0.1,
                     .state_place = place,
                     .window_bytes = place == Place::host ? 1024 : 0,
                     .ema_decay = kDecay,
                     .ema_dtype = dtype};
  if (algorithm == NorMuon::kName) o.further.push_back(NorMuon::factory());
  if (algorithm == Soap::kName) o.further.push_back(Soap::factory());
  return o;
}

Routing all_to(ModuleBase& model, const Algorithm& algorithm) {
  return route(model, {.rules = {{.pattern = ".", .algorithm = algorithm}}});
}

std::vector<float> weights_of(const Parameter& p, Stream& s) {
  return whole(p, ops::weights_as_f32(s, p.shard(), p.shard_low()), s);
}

/// The average after an update, element by element. `steps`: of the optimizer, this one included.
std::vector<float> next_average(const Parameter& p, std::vector<float> average, const std::vector<float>& w,
                                DType dtype, int64_t steps) {
  const float count = static_cast<float>(steps), rate = static_cast<float>(1 - kDecay);
  const Noise noise{.key = hash64(noise_key(p), "ema"), .count = &count};
  for (size_t i = 0; i < w.size(); ++i) {
    const float v = average[i] + rate * (w[i] - average[i]);
    average[i] =
        dtype == DType::f32
            ? v
            : static_cast<float>(rounded(v, noise_at(noise, static_cast<int64_t>(i), NoiseUse::first_state)));
  }
  return average;
}

struct AverageRun {
  Algorithm algorithm = Algorithm::adamw;
  DType dtype = DType::f32;
  int ranks = 1, replicas = 1, microbatches = 1, steps = 4;
  FullyShardOptions shard = {};
  CutClass cut = CutClass::row;
  Place place = Place::device;
  int spoilt = -1;         // step with a NaN in the gradient of rank 0
  bool evaluates = false;  // with the averages, after each step
};

/// Trains, checks the averages after each step against next_average(), and returns everything.
OwnedValues::Map averaged(const AverageRun& run) {
  OwnedValues all;
  launch(run.ranks, [&](RankContext& r) {
    MatrixModel model(every_form(), run.cut);
    model.microbatches = run.microbatches;
    model.change = [&](const Parameter& p, std::vector<float>& g) {
      if (model.step == run.spoilt && r.world->rank() == 0 && p == model.own_parameters().back())
        g[0] = std::numeric_limits<float>::quiet_NaN();
    };
    const Routing routing = all_to(model, run.algorithm);
    FullyShardOptions shard = run.shard;
    shard.master_place = run.place;
    fully_shard(model, mesh_of(r, run.replicas), shard);
    Optimizer optimizer(model, routing, options_of(run.algorithm, run.dtype, run.place));
    Stream& s = r.device->compute();
    const auto averages = [&] {
      std::vector<std::vector<float>> values;
      for (const StateTensor& t : optimizer.average()->state()) values.push_back(whole(t.param, t.local, s));
      return values;
    };
    std::vector<std::vector<float>> want = averages();
    for (size_t i = 0; i < want.size(); ++i) {
      const Parameter p = model.own_parameters()[i];
      std::vector<float> first = weights_of(p, s);
      if (run.dtype == DType::bf16)
        for (float& v : first) v = static_cast<float>(bf16(v));
      EXPECT_TRUE(same_bits(want[i], first)) << p.name();
    }
    for (model.step = 0; model.step < run.steps; ++model.step) {
      for (int micro = 0; micro < run.microbatches; ++micro) {
        runtime_of(model).set_last_microbatch(micro + 1 == run.microbatches);
        run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      }
      optimizer.step(0.02);
      const std::vector<std::vector<float>> got = averages();
      for (size_t i = 0; i < want.size(); ++i) {
        const Parameter p = model.own_parameters()[i];
        const std::vector<float> w = weights_of(p, s);
        if (model.step != run.spoilt) want[i] = next_average(p, want[i], w, run.dtype, optimizer.steps());
        EXPECT_TRUE(same_bits(got[i], want[i])) << p.name() << " after step " << model.step;
      }
      if (run.evaluates) {
        const Averaged scope(optimizer);
        EXPECT_TRUE(optimizer.average()->exchanged());
      }
    }
    EXPECT_EQ(optimizer.skipped(), run.spoilt < 0 ? 0 : 1);
    add_everything(all, model.own_parameters(), optimizer.state(), optimizer.owned_state(), s);
  });
  return all.values();
}

// Which pairs of strategy, layout, ranks, replicas, place and microbatches are taken is drawn.
TEST(WeightAverage, FollowsTheFormulaWithTheSameBitsOnAnyArrangement) {
  std::mt19937 engine(20);
  const auto draw = [&](int count) { return static_cast<int>(engine() % static_cast<unsigned>(count)); };
  for (const Algorithm& algorithm : kEveryAlgorithm)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const OwnedValues::Map one = averaged({.algorithm = algorithm, .dtype = dtype});
      EXPECT_TRUE(one.contains("square low")) << "a split weight";
      for (const Strategy strategy : kEveryStrategy)
        for (const LayoutPolicy layout :
             {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
          AverageRun run{.algorithm = algorithm, .dtype = dtype, .ranks = 1 + draw(6)};
          run.replicas = run.ranks % 2 == 0 && draw(2) == 0 ? 2 : 1;
          run.shard = {
              .strategy = strategy, .outer = draw(2) == 0 ? Outer::optim : Outer::no_shard, .layout = layout};
          if (run.replicas == 1) run.shard.outer = Outer::no_shard;
          run.microbatches = 1 + draw(2);
          run.place = draw(2) == 0 ? Place::host : Place::device;
          run.evaluates = draw(2) == 0;
          EXPECT_EQ(other_bits(averaged(run), one), "")
              << name_of(algorithm) << ", " << name_of(dtype) << ", " << run.ranks << " ranks, "
              << run.replicas << " replicas, " << name_of(strategy) << ", " << name_of(layout) << ", "
              << run.microbatches << " microbatches" << (run.place == Place::host ? ", host" : "");
        }
    }
}

TEST(WeightAverage, HasTheBitsOfOneRankUnderTensorAndExpertParallelism) {
  const auto trained = [](const Spread& spread, Strategy strategy) {
    OwnedValues all;
    launch(spread.ranks(), [&](RankContext& r) {
      Pieces model(r, spread);
      const Routing routing = all_to(model, Algorithm::adamw);
      model.wrap({.strategy = strategy});
      Optimizer optimizer(model, routing, options_of(Algorithm::adamw, DType::bf16));
      for (int step = 0; step < 3; ++step) {
        model.run(*r.device);
        optimizer.step(0.02);
      }
      for (const StateTensor& t : optimizer.average()->state())
        all.add(t.param, t.param.name() + " " + t.key, whole(t.param, t.local, r.device->compute()));
    });
    return all.values();
  };
  const OwnedValues::Map one = trained({}, Strategy::no_shard);
  EXPECT_EQ(one.size(), 6u);
  for (const Spread& spread : kMatrixSpreads)
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params})
      EXPECT_EQ(other_bits(trained(spread, strategy), one), "")
          << spread.ranks() << " ranks, tp " << spread.tp << ", experts " << spread.experts;
}

TEST(WeightAverage, SkippedStepsLeaveItUnchanged) {
  for (const Algorithm& algorithm : kEveryAlgorithm)
    for (const DType dtype : {DType::f32, DType::bf16})
      (void)averaged({.algorithm = algorithm, .dtype = dtype, .ranks = 3, .spoilt = 1});
}

TEST(WeightAverage, FrozenParametersHaveNoneOrKeepIt) {
  launch(2, [](RankContext& r) {
    GivenGradients model;
    const Parameter first = model.add("first", {5, 3}), second = model.add("second", {4, 4});
    Parameter frozen = model.add("frozen", {6});
    frozen.freeze();
    const Routing routing = route(model);
    fully_shard(model, mesh_of(r), {});
    Optimizer optimizer(model, routing, options_of(Algorithm::adamw, DType::f32));
    std::set<std::string> names;
    for (const StateTensor& t : optimizer.state())
      if (t.key == "ema") names.insert(t.param.name());
    EXPECT_EQ(names, (std::set<std::string>{"first", "second"}));
    Stream& s = r.device->compute();
    const auto averages = [&] {
      std::vector<std::vector<float>> all;
      for (const StateTensor& t : optimizer.average()->state()) all.push_back(whole(t.param, t.local, s));
      return all;
    };
    model.train(optimizer, 0.1);
    const auto before = averages();
    runtime_of(model).set_frozen({second}, true);
    model.train(optimizer, 0.1);
    const auto after = averages();
    EXPECT_NE(after[0], before[0]);
    EXPECT_EQ(after[1], before[1]);
    const std::vector<float> weights = ops::to_floats(s, frozen.shard());
    const Averaged scope(optimizer);
    EXPECT_EQ(ops::to_floats(s, frozen.shard()), weights);
    EXPECT_EQ(weights_of(second, s), after[1]);
  });
}

/// Scales weights after each update, and keeps the number of elements that it has scaled.
struct Halved : AfterUpdate {
  explicit Halved(Parameter p) : param(std::move(p)) {
    marks = Tensor::empty(param.shard().device(), {param.shard().numel()}, DType::f32, "test");
    ops::fill(param.shard().device().compute(), marks, 3);
  }
  void apply(Stream& s, const Tensor&) override { ops::scale(s, param.shard(), 0.5f); }
  std::vector<Parameter> changed() const override { return {param}; }
  std::vector<StateTensor> state() const override { return {{param, "marks", marks}}; }
  Parameter param;
  Tensor marks;
};

TEST(WeightAverage, IsOfTheWeightsAfterFurtherChangesWhoseStateIsSaved) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& r) {
    GivenGradients model;
    const Parameter p = model.add("first", {5, 3});
    const Routing routing = route(model);
    fully_shard(model, mesh_of(r), {});
    Optimizer optimizer(model, routing, options_of(Algorithm::adamw, DType::f32));
    const auto halved = std::make_shared<Halved>(p);
    optimizer.after_update(halved);
    Stream& s = r.device->compute();
    const std::vector<float> before = weights_of(p, s);
    model.train(optimizer, 0.1);
    EXPECT_TRUE(same_bits(whole(p, optimizer.average()->state()[0].local, s),
                          next_average(p, before, weights_of(p, s), DType::f32, 1)));
    const StateDict saved = state_dict(model, &optimizer, DictKind::on_first);
    if (r.world->rank() == 0) {
      ASSERT_TRUE(saved.optimizer.contains("optim.state.first.marks"));
      EXPECT_EQ(saved.optimizer.at("optim.state.first.marks").values<float>()[14], 3);
    }
    ops::fill(s, halved->marks, 4);
    load_state_dict(model, &optimizer, saved, DictKind::on_first);
    EXPECT_EQ(whole(p, halved->marks, s), std::vector<float>(15, 3));
  });
}

TEST(WeightAverage, SeveralOptimizersKeepTheirOwn) {
  launch(2, [](RankContext& r) {
    GivenGradients model;
    const Parameter first = model.add("first", {5, 3}), second = model.add("second", {4, 4});
    const Routing routing = route(model);
    fully_shard(model, mesh_of(r), {});
    OptimizerOptions none = options_of(Algorithm::adamw, DType::f32);
    Optimizer one(model, routing.part([&](const Route& p) { return p.param == first; }), none);
    none.ema_decay = 0;
    Optimizer other(model, routing.part([&](const Route& p) { return p.param == second; }), none);
    EXPECT_EQ(other.average(), nullptr);
    ASSERT_EQ(one.average()->state().size(), 1u);
    EXPECT_EQ(one.average()->state()[0].param, first);
    EXPECT_THAT(message_of<InvalidArgument>([&] { const Averaged scope(other); }),
                HasSubstr("set OptimizerOptions::ema_decay"));
    const Averaged scope(one);
    EXPECT_THAT(message_of<InvalidArgument>([&] { model.train(other, 0.1); }), HasSubstr("end that scope"));
  });
}

// In every form: the halves of split weights, averages that weights hold exactly, and those that they do not.
TEST(Averaged, PutsAveragesInThePlaceOfWeightsAndRestoresTheirBits) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Place place : {Place::device, Place::host})
      for (const int ranks : {1, 3})
        launch(ranks, [&](RankContext& r) {
          MatrixModel model(every_form());
          const Routing routing = all_to(model, Algorithm::muon);
          fully_shard(model, mesh_of(r), {.master_place = place});
          Optimizer optimizer(model, routing, options_of(Algorithm::muon, dtype, place));
          for (model.step = 0; model.step < 3; ++model.step) {
            run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
            optimizer.step(0.02);
          }
          Stream& s = r.device->compute();
          const auto everything = [&] {
            OwnedValues all;
            add_everything(all, model.own_parameters(), optimizer.state(), {}, s);
            return all.values();
          };
          const OwnedValues::Map before = everything();
          for (int again = 0; again < 2; ++again) {
            const Averaged scope(optimizer);
            for (const Parameter& p : model.own_parameters()) {
              std::vector<float> want = before.at(p.name() + " ema");
              if (p.group().plan().master == Master::bf16)
                for (float& v : want) v = static_cast<float>(bf16(v));
              EXPECT_TRUE(same_bits(weights_of(p, s), want)) << p.name();
            }
          }
          EXPECT_EQ(other_bits(everything(), before), "");
        });
}

TEST(Averaged, ForwardsAndExportsUseTheAveragesAndTrainingIsUnchanged) {
  const TemporaryFolder folder;
  for (const DType compute : {DType::f32, DType::bf16})
    for (const Strategy strategy : kEveryStrategy)
      launch(2, [&](RankContext& r) {
        const FullyShardOptions shard{.strategy = strategy, .compute_dtype = compute};
        Rig plain(r, shard), rig(r, shard), other(r, shard);
        rig.optimizer.reset();
        rig.optimizer.emplace(rig.model, rig.routes, OptimizerOptions{.ema_decay = 0.5});
        Stream& s = r.device->compute();
        const auto losses = [&](Rig& of) {
          of.model.set_training(false);
          of.model(nn::Var(of.tokens));
          of.model.set_training(true);
          return ops::to_floats(s, of.model.losses);
        };
        for (int step = 0; step < 3; ++step) {
          plain.step();
          rig.step();
          const std::vector<float> before = losses(rig);
          EXPECT_EQ(before, losses(plain)) << "training without averages";
          std::vector<float> inside;
          const std::string path = folder / fmt::format("{}{}{}", name_of(strategy), name_of(compute), step);
          {
            const Averaged scope(*rig.optimizer);
            inside = losses(rig);
            export_weights(rig.model, path);
          }
          EXPECT_EQ(losses(rig), before);
          EXPECT_NE(inside, before);
          import_weights(other.model, path);
          EXPECT_EQ(losses(other), inside);
        }
      });
}

TEST(Averaged, TrainingSavesAndLoadsInsideAreErrors) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& r) {
    Rig rig(r, {.strategy = Strategy::optim_grads_params});
    rig.optimizer.reset();
    rig.optimizer.emplace(rig.model, rig.routes, OptimizerOptions{.ema_decay = 0.5});
    const auto refused = [](const std::function<void()>& f) { return message_of<InvalidArgument>(f); };
    rig.forward();
    EXPECT_THAT(refused([&] { const Averaged scope(*rig.optimizer); }),
                HasSubstr("backward is still to come"));
    rig.backward();
    EXPECT_THAT(refused([&] { const Averaged scope(*rig.optimizer); }), HasSubstr("gradients of this step"));
    rig.optimizer->step(0.01);
    CheckpointSaver saver(r.world, checkpoint_tensors(rig.model, &*rig.optimizer),
                          {.folder = folder / "run"});
    StateDict dict = state_dict(rig.model, &*rig.optimizer, DictKind::sharded);
    {
      const Averaged scope(*rig.optimizer);
      const auto inside = HasSubstr("averages are in the place of the weights");
      EXPECT_THAT(refused([&] { rig.forward(); }), inside);
      EXPECT_THAT(refused([&] { rig.optimizer->step(0.01); }), inside);
      EXPECT_THAT(refused([&] { saver.save({.step = 1}); }), inside);
      EXPECT_THAT(refused([&] { (void)state_dict(rig.model, &*rig.optimizer, DictKind::sharded); }), inside);
      EXPECT_THAT(refused([&] { load_state_dict(rig.model, &*rig.optimizer, dict, DictKind::sharded); }),
                  inside);
      EXPECT_THAT(refused([&] { const Averaged again(*rig.optimizer); }), HasSubstr("another scope"));
    }
    rig.step();
    saver.save({.step = 2});
    // An exception leaves the scope, and training continues.
    EXPECT_THROW(
        {
          const Averaged scope(*rig.optimizer);
          throw std::runtime_error("evaluation");
        },
        std::runtime_error);
    rig.step();
  });
}

// The exchange back does not run on a stream that has failed: only a load makes the weights whole.
TEST(Averaged, AFailureInsideIsFoundByTheRecovery) {
  std::mutex mutex;
  std::vector<std::string> texts;
  launch(2, [&](RankContext& r) {
    Rig rig(r, {});
    rig.optimizer.reset();
    rig.optimizer.emplace(rig.model, rig.routes, OptimizerOptions{.ema_decay = 0.5});
    rig.step();
    const StateDict dict = state_dict(rig.model, &*rig.optimizer, DictKind::sharded);
    r.world->barrier(r.device->compute());
    rig.sync();
    {
      const Averaged scope(*rig.optimizer);
      r.device->compute().synchronize();
      if (r.world->rank() == 1)
        r.device->compute().submit("test", [](ExecutionContext&) { throw OutOfMemory("in an evaluation"); });
    }
    r.world->recover();
    try {
      runtime_of(rig.model).recovered();
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
    }
    load_state_dict(rig.model, &*rig.optimizer, dict, DictKind::sharded);
    rig.step();
    rig.sync();
    const Averaged scope(*rig.optimizer);
  });
  EXPECT_THAT(texts, SizeIs(2));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("ranks in the middle of it: 1"), HasSubstr("load a checkpoint"))));
}

TEST(WeightAverage, InvalidOptionsAreNamed) {
  const auto refused = [](double decay, DType dtype) {
    return message_of<InvalidArgument>([&] {
      launch(2, [&](RankContext& r) {
        GivenGradients model;
        model.add("first", {5, 3});
        const Routing routing = route(model);
        fully_shard(model, mesh_of(r), {});
        Optimizer(model, routing, {.ema_decay = decay, .ema_dtype = dtype});
      });
    });
  };
  for (const double decay : {1.0, -0.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(refused(decay, DType::f32), HasSubstr(fmt::format("ema decay {} must lie in [0, 1)", decay)));
  EXPECT_THAT(refused(0.5, DType::f16), HasSubstr("ema dtype f16 (use f32 or bf16)"));
}

}  // namespace
}  // namespace sherd::test
