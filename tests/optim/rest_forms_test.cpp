// Weights and state in 16 bits: the same bits on any ranks, under any strategy and layout, and the bytes that they take.

#include <map>
#include <string>

#include "optim/matrix_rules.h"
#include "support/message_of.h"
#include "support/rig.h"
#include "support/sgd.h"

namespace sherd::test {
namespace {

const UpdateRuleFactory& adamw() {
  static const UpdateRuleFactory factory = AdamW::factory({});
  return factory;
}

// MatrixRules has the same for the optimizers of whole matrices, over every_form(), too.
TEST(RestForms, AdamWHasTheBitsOfOneRankOnAnyArrangement) {
  const OwnedValues::Map one = trained(adamw());
  ASSERT_TRUE(one.contains("square low")) << "a split weight";
  for (const int ranks : {2, 3, 4, 5, 6})
    for (const Strategy strategy : kEveryStrategy)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
        MatrixRun run{.ranks = ranks, .shard = {.strategy = strategy, .layout = layout}};
        run.cut = ranks % 2 == 0 ? CutClass::element : CutClass::row;
        EXPECT_EQ(other_bits(trained(adamw(), run), one), "")
            << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout);
      }
  for (const auto& [ranks, replicas] : {std::pair(4, 2), {6, 3}, {4, 4}})
    for (const Outer outer : {Outer::no_shard, Outer::optim})
      EXPECT_EQ(other_bits(
                    trained(adamw(), {.ranks = ranks, .replicas = replicas, .shard = {.outer = outer}}), one),
                "")
          << ranks << " ranks, " << replicas << " replicas, " << name_of(outer);
}

// Noise counts elements of the whole parameter, whatever cuts it.
TEST(RestForms, AdamWHasTheBitsOfOneRankUnderTensorAndExpertParallelism) {
  const OwnedValues::Map one = trained_pieces(adamw(), {});
  for (const Spread& spread : kMatrixSpreads)
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params})
      EXPECT_EQ(other_bits(trained_pieces(adamw(), spread, false, 3, strategy), one), "")
          << spread.ranks() << " ranks, tp " << spread.tp << ", experts " << spread.experts;
}

/// every_matrix() in one form.
DescribedMatrices all_in(RestForms forms) {
  DescribedMatrices all = every_matrix();
  for (DescribedMatrix& d : all) d.forms = forms;
  return all;
}

TEST(RestForms, SplitWeightsAreFp32Masters) {
  for (const DType state : {DType::f32, DType::bf16}) {
    const DescribedMatrices whole = all_in({Master::f32, state}), halves = all_in({Master::split, state});
    for (const UpdateRuleFactory& factory :
         {adamw(), Muon::factory({}), NorMuon::factory(), Soap::factory()}) {
      const OwnedValues::Map want = trained(factory, {.steps = 12, .model = &whole});
      OwnedValues::Map got = trained(factory, {.ranks = 3, .steps = 12, .model = &halves});
      for (const DescribedMatrix& d : every_matrix()) {
        std::vector<float>& high = got.at(d.name);
        const std::vector<float>& low = got.at(d.name + " low");
        const auto bits = [](float v) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16); };
        for (size_t i = 0; i < high.size(); ++i) high[i] = joined({bits(high[i]), bits(low[i])});
        got.erase(d.name + " low");
      }
      EXPECT_EQ(other_bits(got, want), "") << name_of(factory.algorithm) << ", state " << name_of(state);
    }
  }
}

/// Losses of a model that computes in bf16. `ties_away`: fp32 masters, whose copies are rounded as split does.
std::vector<float> losses_of(Master master, bool ties_away, int ranks, Strategy strategy) {
  std::vector<float> losses;
  launch(ranks, [&](RankContext& r) {
    FullyShardOptions o{.strategy = strategy, .compute_dtype = DType::bf16, .master = master};
    Rig rig(r, o, 1, nullptr, 16, 32, {}, Algorithm::muon);
    Stream& s = r.device->compute();
    const auto round_away = [&] {
      WeightsChange change(runtime_of(rig.model));
      change.begin_update();
      for (auto& [name, p] : rig.model.named_parameters()) {
        const Tensor low = Tensor::empty(*r.device, {p.shard().numel()}, DType::bf16, "test");
        ops::split(s, p.model_copy(), low, p.shard());
      }
      for (ParamGroup* g : runtime_of(rig.model).groups()) g->copies_written();
      change.end();
    };
    if (ties_away) round_away();
    for (int step = 0; step < 8; ++step) {
      rig.step();
      if (ties_away) round_away();
      const float loss = ops::to_floats(s, rig.model.losses)[0];
      if (r.world->rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST(RestForms, SplitTrainsAsFp32MastersUnderTiesAway) {
  const std::vector<float> want = losses_of(Master::f32, true, 1, Strategy::no_shard);
  EXPECT_NE(want.front(), want.back());
  for (const Strategy strategy : kEveryStrategy)
    EXPECT_EQ(losses_of(Master::split, false, 1, strategy), want) << name_of(strategy);
}

/// Bytes that the allocator holds of a class.
struct HeldBytes {
  int64_t weights, gradients, state;
};

HeldBytes held_bytes(Algorithm algorithm, Master master, DType state, int ranks, Strategy strategy,
                     int64_t& elements) {
  HeldBytes held{};
  launch(ranks, [&](RankContext& r) {
    GivenGradients model;
    // Without padding, and so large that counters and rounding of sizes stay below a thousandth.
    model.add("first.weight", {1024, 768});
    model.add("second.weight", {768, 1024});
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = algorithm}}});
    fully_shard(model, mesh_of(r), {.strategy = strategy, .compute_dtype = DType::bf16, .master = master});
    Optimizer optimizer(model, routing, {.state_dtype = state});
    const Allocator& a = r.device->allocator();
    int64_t planned = 0, slots = 0;
    for (const ParamGroup* g : runtime_of(model).groups())
      for (const PlannedBuffer& b : g->plan().buffers)
        if (b.memory == MemoryClass::parameter || b.memory == MemoryClass::master) planned += b.bytes();
    for (const PlannedBuffer& slot : runtime_of(model).plan().gradient_slots) slots += slot.bytes();
    if (r.world->rank() != 0) return;
    elements = 2 * 1024 * 768 / ranks;
    held = {a.live_bytes(MemoryClass::parameter) + a.live_bytes(MemoryClass::master),
            a.live_bytes(MemoryClass::gradient) - slots, a.live_bytes(MemoryClass::optimizer)};
    EXPECT_EQ(held.weights, planned);
  });
  return held;
}

TEST(RestForms, BytesOfAnElementAreThoseOfTheFormula) {
  struct Case {
    Algorithm algorithm;
    Master master;
    DType state;
    int64_t weights, states;
  };
  const Algorithm a = Algorithm::adamw, m = Algorithm::muon;
  for (const Case& c : std::vector<Case>{{a, Master::f32, DType::f32, 6, 8},
                                         {a, Master::split, DType::f32, 4, 8},
                                         {a, Master::bf16, DType::f32, 2, 8},
                                         {a, Master::f32, DType::bf16, 6, 4},
                                         {a, Master::bf16, DType::bf16, 2, 4},
                                         {m, Master::f32, DType::f32, 6, 4},
                                         {m, Master::bf16, DType::f32, 2, 4},
                                         {m, Master::bf16, DType::bf16, 2, 2}})
    for (const auto& [ranks, strategy] : {std::pair(1, Strategy::no_shard),
                                          {1, Strategy::optim_grads_params},
                                          {4, Strategy::optim_grads_params}}) {
      int64_t n = 0;
      const HeldBytes held = held_bytes(c.algorithm, c.master, c.state, ranks, strategy, n);
      const std::string what = fmt::format("{} master {} state {}, {} ranks", name_of(c.algorithm),
                                           name_of(c.master), name_of(c.state), ranks);
      EXPECT_EQ(held.weights, c.weights * n) << what;
      // Counters: a few words for each parameter, and buffers of the step.
      EXPECT_GE(held.state, c.states * n) << what;
      EXPECT_LE(held.state, c.states * n + 4096) << what;
      EXPECT_EQ(held.gradients, 4 * n) << what;
    }
}

TEST(RestForms, FormsOfAParameterAreSetByRules) {
  launch(2, [](RankContext& r) {
    GivenGradients model;
    const Parameter first = model.add("first.weight", {8, 8}), second = model.add("second.weight", {8, 8});
    const Routing routing = route(
        model,
        {.rules = {{.pattern = "first", .settings = {.master = Master::f32, .state_dtype = DType::f32}}}});
    EXPECT_THAT(routing.format(), HasSubstr("master f32, state f32"));
    fully_shard(model, mesh_of(r), {.compute_dtype = DType::bf16, .master = Master::bf16});
    Optimizer optimizer(model, routing, {.state_dtype = DType::bf16});
    EXPECT_EQ(first.shard().dtype(), DType::f32);
    EXPECT_EQ(second.shard().dtype(), DType::bf16);
    EXPECT_FALSE(second.model_copy().defined());
    for (const StateTensor& s : optimizer.state())
      EXPECT_EQ(s.local.dtype(), s.param == first ? DType::f32 : DType::bf16) << s.param.name();
    EXPECT_THROW(Parameter(second).set_master(Master::f32), InvalidArgument);
  });
}

TEST(RestForms, OptimizersThatLackAFormAreNamedWithTheRemedy) {
  const auto refused = [](const UpdateRuleFactory& factory, Master master, DType state) {
    return message_of<InvalidArgument>([&] {
      launch(2, [&](RankContext& r) {
        GivenGradients model;
        model.add("first.weight", {8, 8});
        model.add("second.weight", {8, 8});
        const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = factory.algorithm}}});
        fully_shard(model, mesh_of(r), {.compute_dtype = DType::bf16, .master = master});
        std::vector<UpdateRuleFactory> further;
        if (factory.algorithm != Algorithm::muon) further.push_back(factory);
        Optimizer(model, routing,
                  {.muon = {.fraction = factory.algorithm == Algorithm::muon ? 0.5 : 1},
                   .state_dtype = state,
                   .further = further});
      });
    });
  };
  const UpdateRuleFactory sgd = Sgd::factory(0.5f);
  EXPECT_THAT(refused(sgd, Master::bf16, DType::f32),
              AllOf(HasSubstr("master weights in f32 alone, for first.weight and 1 more"),
                    HasSubstr("leave out FullyShardOptions::master")));
  EXPECT_THAT(refused(sgd, Master::f32, DType::bf16), HasSubstr("leave out OptimizerOptions::state_dtype"));
  EXPECT_THAT(refused(Muon::factory({.fraction = 0.5}), Master::bf16, DType::bf16),
              AllOf(HasSubstr("Muon has state in f32 alone"), Not(HasSubstr("master weights"))));
  EXPECT_THAT(refused(sgd, Master::f32, DType::f16), HasSubstr("state dtype f16 (use f32, bf16 or i8)"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                launch(1, [](RankContext& r) {
                  GivenGradients model;
                  model.add("w", {2, 2});
                  fully_shard(model, mesh_of(r), {.master = Master::split});
                });
              }),
              HasSubstr("master split with compute dtype f32"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                GivenGradients model;
                model.add("w", {2, 2});
                (void)route(model, {.rules = {{.pattern = "w", .settings = {.state_dtype = DType::f64}}}});
              }),
              HasSubstr("state dtype f64"));
}

TEST(RestForms, SkippedStepsAndFrozenParametersKeepTheirBitsAndTheirNoise) {
  // The same steps with one that is skipped between them: later noise is not shifted.
  const auto weights = [](bool skips, Algorithm algorithm) {
    std::vector<float> all;
    launch(1, [&](RankContext& r) {
      GivenGradients model;
      const Parameter w = model.add("w", {16, 8});
      const Parameter frozen = model.add("frozen", {16, 8});
      const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = algorithm}}});
      fully_shard(model, mesh_of(r), {.compute_dtype = DType::bf16, .master = Master::bf16});
      Optimizer optimizer(model, routing, {.state_dtype = DType::bf16});
      runtime_of(model).set_frozen({frozen}, true);
      Stream& s = r.device->compute();
      const std::vector<float> before = ops::to_floats(s, frozen.shard());
      for (int step = 0; step < 5; ++step) {
        if (skips && step == 2) {
          const std::vector<float> own = ops::to_floats(s, w.shard());
          runtime_of(model).set_frozen({frozen}, false);
          model.train(optimizer, 0.01, true);
          runtime_of(model).set_frozen({frozen}, true);
          --model.step;
          EXPECT_EQ(ops::to_floats(s, w.shard()), own);
        }
      }
      EXPECT_EQ(optimizer.skipped(), skips ? 1 : 0);
      EXPECT_EQ(ops::to_floats(s, frozen.shard()), before);
      all = ops::to_floats(s, w.shard());
    });
    return all;
  };
  for (const Algorithm& algorithm : {Algorithm::adamw, Algorithm::muon})
    EXPECT_EQ(weights(true, algorithm), weights(false, algorithm)) << name_of(algorithm);
}

}  // namespace
}  // namespace sherd::test
