// State in 8 bits: the same bits on any ranks, under any strategy and layout, its bytes, and what is refused.
#include <optional>
#include <string>

#include <fmt/format.h>

#include "optim/matrix_rules.h"
#include "support/message_of.h"
#include "support/sgd.h"

namespace sherd::test {
namespace {

std::vector<UpdateRuleFactory> rules() { return {AdamW::factory({}), Muon::factory({}), NorMuon::factory()}; }

TEST(QuantizedState, HasTheBitsOfOneRankOnAnyArrangement) {
  for (const UpdateRuleFactory& rule : rules()) {
    const OwnedValues::Map one =
        trained(rule, {.shard = {.whole_state_blocks = true}, .model = &every_quantized()});
    const auto same = [&](MatrixRun run, const std::string& what) {
      run.shard.whole_state_blocks = true;
      run.model = &every_quantized();
      EXPECT_EQ(other_bits(trained(rule, run), one), "") << name_of(rule.algorithm) << ", " << what;
    };
    for (const int ranks : {2, 3, 4, 5, 6})
      for (const Strategy strategy : kEveryStrategy)
        for (const LayoutPolicy layout :
             {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
          // All layouts of few ranks, one of each other.
          if (ranks > 3 && (ranks + static_cast<int>(strategy) + static_cast<int>(layout)) % 3 != 0) continue;
          MatrixRun run{.ranks = ranks, .shard = {.strategy = strategy, .layout = layout}};
          run.cut = ranks % 2 == 0 ? CutClass::element : CutClass::row;
          same(run, fmt::format("{} ranks, {}, {}", ranks, name_of(strategy), name_of(layout)));
        }
    for (const Outer outer : {Outer::no_shard, Outer::optim})
      same({.ranks = 6, .replicas = 3, .shard = {.outer = outer}},
           fmt::format("replicas, {}", name_of(outer)));
    MatrixRun placed;
    placed.place = Place::host;
    same(placed, "on the host");
  }
}

TEST(QuantizedState, HasTheBitsOfOneRankUnderTensorAndExpertParallelism) {
  for (const UpdateRuleFactory& rule : rules()) {
    const auto run = [&](const Spread& spread, Strategy strategy) {
      return trained_pieces(rule, spread, false, 3, strategy, /*quantized=*/true);
    };
    const OwnedValues::Map one = run({}, Strategy::no_shard);
    for (const Spread& spread : kMatrixSpreads)
      EXPECT_EQ(other_bits(run(spread, Strategy::optim_grads_params), one), "")
          << name_of(rule.algorithm) << ", " << spread.ranks() << " ranks, tp " << spread.tp << ", experts "
          << spread.experts;
  }
}

TEST(QuantizedState, SkippedStepsAndFrozenParametersKeepCodesAndScales) {
  for (const UpdateRuleFactory& rule : rules())
    launch(2, [&](RankContext& r) {
      Stream& s = r.device->compute();
      MatrixModel model(every_quantized());
      fully_shard(model, mesh_of(r), {.whole_state_blocks = true});
      const PlacedRule made(rule, *r.device, matrix_items(model, kMatrixDecay, model.states), Place::device);
      const auto bytes = [&](const Parameter& p) {
        std::vector<char> all;
        for (const StateTensor& t : made.rule->state())
          for (const Tensor& part : {t.local, t.scales}) {
            if (!part.defined() || t.param != p) continue;
            const size_t begin = all.size();
            all.resize(begin + static_cast<size_t>(part.nbytes()));
            ops::copy_to_host(s, all.data() + begin, part);
          }
        return all;
      };
      const auto step = [&](const Tensor& skip) {
        run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
        update_by(*made.rule, model, skip, made.windows.get());
        ++model.step;
      };
      step({});
      std::vector<std::vector<char>> before;
      for (const Parameter& p : model.own_parameters()) before.push_back(bytes(p));
      const Tensor skip = Tensor::empty(*r.device, {1}, DType::i64, "test");
      ops::fill(s, skip, 1);
      step(skip);
      for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(bytes(model.own_parameters()[i]), before[i]);
      const Parameter frozen = model.own_parameters()[2];
      runtime_of(model).set_frozen({frozen}, true);
      step({});
      for (size_t i = 0; i < before.size(); ++i) {
        const Parameter p = model.own_parameters()[i];
        if (p.shard_range().empty()) continue;
        EXPECT_EQ(bytes(p) == before[i], p == frozen) << p.name() << ", " << name_of(rule.algorithm);
      }
    });
}

/// A model of two matrices, its optimizer, and what the ranks were refused with.
std::string refusal(int ranks, const FullyShardOptions& shard, const OptimizerOptions& options, Shape shape,
                    std::optional<TensorShard> cut = {}, const Algorithm& algorithm = Algorithm::adamw) {
  return message_of<InvalidArgument>([&] {
    launch(ranks, [&](RankContext& r) {
      GivenGradients model;
      // Uneven, so that ranks' pieces begin inside of blocks unless the layout heeds them.
      model.add("norm.weight", {40});
      Parameter p = model.add("first.weight", shape);
      if (TensorShard mine; cut) {
        mine = *cut;
        mine.index = r.world->rank();
        p.set_tensor_shard(mine);
      }
      const Routing routing = route(model, {.rules = {{.pattern = "first", .algorithm = algorithm}}});
      const DeviceMesh mesh = cut ? DeviceMesh(r.world, {{"shard", 1}, {"tp", ranks}}) : mesh_of(r);
      fully_shard(model, mesh, shard);
      Optimizer(model, routing, options);
    });
  });
}

TEST(QuantizedState, CutBlocksAndOptimizersWithoutItAreRefused) {
  const OptimizerOptions options{.state_dtype = DType::i8};
  EXPECT_THAT(refusal(3, {}, options, {64, 128}),
              AllOf(HasSubstr("state of 'first.weight' in i8: the piece of rank"),
                    HasSubstr("begins inside of a block of 128: set FullyShardOptions::whole_state_blocks")));
  EXPECT_EQ(refusal(3, {.whole_state_blocks = true}, options, {64, 128}), "nothing was thrown");
  EXPECT_EQ(refusal(3, {}, options, {30, 100}), "nothing was thrown") << "no blocks: 16 bits";
  OptimizerOptions soap = options;
  soap.further = {Soap::factory()};
  EXPECT_THAT(refusal(1, {}, soap, {64, 128}, {}, Algorithm("soap")),
              AllOf(HasSubstr("has no state in 8 bits, for first.weight"), HasSubstr("leave out i8 of")));
  TensorShard cut{"tp", 1, 2, 0};
  EXPECT_THAT(
      refusal(2, {.whole_state_blocks = true}, options, {128, 96}, cut),
      HasSubstr("tensor parallelism cuts its rows into pieces of 96 elements, inside of blocks of 64"));
}

/// Bytes that a rank holds with bf16 weights and gradients.
struct QuantizedBytes {
  int64_t elements = 0, weights = 0, gradients = 0, optimizer = 0;
  int64_t state = 0;  // of `optimizer`
};
QuantizedBytes quantized_bytes(const Algorithm& algorithm, int ranks) {
  QuantizedBytes held;
  launch(ranks, [&](RankContext& r) {
    GivenGradients model;
    model.add("first.weight", {1024, 768});
    model.add("second.weight", {768, 1024});
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = algorithm}}});
    fully_shard(model, mesh_of(r),
                {.compute_dtype = DType::bf16,
                 .master = Master::bf16,
                 .grad_dtype = DType::bf16,
                 .whole_state_blocks = true});
    Optimizer optimizer(model, routing, {.state_dtype = DType::i8});
    if (r.world->rank() != 0) return;
    const Allocator& a = r.device->allocator();
    held.elements = 2 * 1024 * 768 / ranks;
    held.weights = a.live_bytes(MemoryClass::parameter) + a.live_bytes(MemoryClass::master);
    held.gradients = a.live_bytes(MemoryClass::gradient);
    for (const PlannedBuffer& slot : runtime_of(model).plan().gradient_slots) held.gradients -= slot.bytes();
    held.optimizer = a.live_bytes(MemoryClass::optimizer);
    for (const StateTensor& s : optimizer.state()) held.state += s.local.nbytes() + s.scales.nbytes();
  });
  return held;
}

TEST(QuantizedState, BytesOfAnElementAreThoseOfTheFormula) {
  for (const auto& [algorithm, states] : {std::pair(Algorithm::adamw, 2), {Algorithm::muon, 1}})
    for (const int ranks : {1, 4}) {
      const QuantizedBytes held = quantized_bytes(algorithm, ranks);
      const int64_t n = held.elements;
      EXPECT_EQ(held.weights, 2 * n);
      EXPECT_EQ(held.gradients, 2 * n);
      EXPECT_EQ(held.state, states * (n + n / 64));  // 4 bytes more for each block of 256
      // One window, of an eighth of the state in fp32 but at least 1 MiB; counters, and buffers of the step.
      const int64_t window = std::max<int64_t>(states * n * 4 / 8, int64_t{1} << 20);
      EXPECT_GE(held.optimizer, held.state + window) << name_of(algorithm);
      EXPECT_LE(held.optimizer, held.state + window + 8192) << name_of(algorithm);
    }
}

}  // namespace
}  // namespace sherd::test
