// State of every rule of whole matrices goes to the new owners, value by value: checkpoints and state dicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>

#include "optim/matrix_rules.h"
#include "support/sgd.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

/// Matrices, a stack, fused rows and heads, which `tp` ranks share, under a rule, a gain under AdamW. Gradients have few
/// bits: their averages over 1 to 4 ranks are exact.
struct RuleTrained : GivenGradients {
  std::optional<Optimizer> optimizer;

  RuleTrained(RankContext& r, const MatrixRuleRow& rule, Strategy strategy, int tp) {
    const DeviceMesh mesh(r.world, {{"shard", r.world->size() / tp}, {"tp", tp}});
    add("matrix.weight", {9, 5});
    add("stack.weight", {5, 4, 3});
    add("fused.weight", {6, 4}).set_row_blocks(stacked_blocks({4, 2}, {"q", "k"}));
    add("heads.weight", {4 / tp * 3, 5})
        .set_row_blocks(head_blocks(4 / tp, 3))
        .set_tensor_shard({"tp", 0, tp, mesh.coordinate("tp")});
    add("gain.weight", {3});
    UpdateRuleFactory factory = rule.factory({});
    factory.algorithm = Algorithm("rule", CutClass::row, true);  // beside the built-in ones
    const Routing routing = route(*this, {.optimizer = factory.algorithm});
    fully_shard(*this, mesh, {.strategy = strategy});
    optimizer.emplace(*this, routing, OptimizerOptions{.further = {factory}});
  }
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (const GlobalRun& run : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
        for (int64_t k = 0; k < run.count; ++k)
          g[static_cast<size_t>(run.local.value + k)] =
              matrix_gradient(static_cast<size_t>(run.global.value + k), step);
      ops::copy_from_host(p.grad().device().compute(), p.grad(), g.data(), p.grad().nbytes());
    }
  }
  void train_to(int end) {
    while (step < end) train(*optimizer, 0.125);
  }
  void save(RankContext& r, const std::string& folder) {
    CheckpointSaver saver(r.world, checkpoint_tensors(*this, &*optimizer), {.folder = folder});
    saver.save({.step = step});
  }
};

class MatrixRuleCheckpoint : public ::testing::TestWithParam<MatrixRuleRow> {
 protected:
  using Body = std::function<void(RuleTrained&, RankContext&)>;
  /// Runs `body` on each rank, and returns weights and state of all ranks afterwards.
  static OwnedValues::Map after(int ranks, Strategy strategy, const Body& body, int tp = 1) {
    OwnedValues all;
    test::launch(ranks, [&](RankContext& r) {
      RuleTrained run(r, GetParam(), strategy, tp);
      body(run, r);
      add_everything(all, run.own_parameters(), run.optimizer->state(), run.optimizer->owned_state(),
                     r.device->compute());
    });
    return all.values();
  }
  static Body train_to(int end) {
    return [=](RuleTrained& run, RankContext&) { run.train_to(end); };
  }
  /// Resumes from `folder`, saved after `step` steps, and trains on to `end`.
  static Body resumed(const std::string& folder, int step, int end) {
    return [=](RuleTrained& run, RankContext&) {
      resume(folder, run, &*run.optimizer);
      run.step = step;
      run.train_to(end);
    };
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, MatrixRuleCheckpoint, ::testing::ValuesIn(kMatrixRules),
                         [](const auto& rule) { return std::string(rule.param.name); });

TEST_P(MatrixRuleCheckpoint, SavedOnFourRanksIsResumedOnOtherRanksValueByValue) {
  const TemporaryFolder folder;
  const OwnedValues::Map saved =
      after(4, Strategy::optim_grads_params, [&](RuleTrained& run, RankContext& r) {
        run.train_to(3);
        run.save(r, folder / "run");
      });
  const OwnedValues::Map straight = after(1, Strategy::no_shard, train_to(6));
  for (const auto& [ranks, strategy] : {std::pair(3, Strategy::optim_grads_params),
                                        {3, Strategy::no_shard},
                                        {1, Strategy::optim},
                                        {4, Strategy::optim_grads}}) {
    EXPECT_EQ(other_bits(after(ranks, strategy, resumed(folder / "run", 3, 3)), saved), "") << ranks;
    EXPECT_EQ(other_bits(after(ranks, strategy, resumed(folder / "run", 3, 6)), straight), "") << ranks;
  }
}

TEST_P(MatrixRuleCheckpoint, HeadsGoToOtherTensorParallelRanks) {
  const TemporaryFolder folder;
  const OwnedValues::Map straight = after(1, Strategy::no_shard, train_to(4));
  for (const int from : {1, 2, 4}) {
    const std::string name = folder / std::to_string(from);
    const OwnedValues::Map saved = after(
        4, Strategy::optim_grads_params,
        [&](RuleTrained& run, RankContext& r) {
          run.train_to(2);
          run.save(r, name);
        },
        from);
    for (const auto& [ranks, tp] : {std::pair(1, 1), {2, 2}, {4, 2}, {4, 4}}) {
      EXPECT_EQ(other_bits(after(ranks, Strategy::optim, resumed(name, 2, 2), tp), saved), "")
          << from << " " << tp;
      EXPECT_EQ(other_bits(after(ranks, Strategy::optim, resumed(name, 2, 4), tp), straight), "")
          << from << " " << tp;
    }
  }
}

TEST_P(MatrixRuleCheckpoint, EveryKindOfStateDictBringsTheStateBack) {
  for (const DictKind kind : {DictKind::on_first, DictKind::on_all, DictKind::sharded}) {
    std::vector<StateDict> dicts(4);
    const OwnedValues::Map saved =
        after(4, Strategy::optim_grads_params, [&](RuleTrained& run, RankContext& r) {
          run.train_to(2);
          dicts[static_cast<size_t>(r.world->rank())] = state_dict(run, &*run.optimizer, kind);
        });
    if (kind != DictKind::sharded) {
      const StateDict& dict = dicts[0];
      for (const auto& [name, want] : saved) {
        const size_t space = name.find(' ');
        if (space == name.npos) continue;
        const auto values =
            dict.optimizer.at("optim.state." + name.substr(0, space) + "." + name.substr(space + 1))
                .values<float>();
        EXPECT_EQ(std::vector<float>(values.begin(), values.end()), want) << name;
      }
    }
    const int ranks = kind == DictKind::sharded ? 4 : 3;
    const OwnedValues::Map loaded =
        after(ranks, Strategy::optim_grads_params, [&](RuleTrained& run, RankContext& r) {
          load_state_dict(run, &*run.optimizer, dicts[static_cast<size_t>(r.world->rank())], kind);
        });
    EXPECT_EQ(other_bits(loaded, saved), "") << static_cast<int>(kind);
  }
}

TEST(SoapCheckpoint, NamesStacksBlocksAndHeads) {
  const TemporaryFolder folder;
  test::launch(2, [&](RankContext& r) {
    const auto soap = std::find_if(std::begin(kMatrixRules), std::end(kMatrixRules),
                                   [](const MatrixRuleRow& rule) { return rule.has_state; });
    RuleTrained run(r, *soap, Strategy::optim, 1);
    run.train_to(1);
    run.save(r, folder / "run");
  });
  const CheckpointReader reader = CheckpointReader::open(folder / "run/step_00000001");
  for (const auto& [name, shape] : {std::pair<const char*, Shape>{"stack.weight.soap_left", {5, 4, 4}},
                                    {"fused.weight.soap_right_basis[k]", {4, 4}},
                                    {"heads.weight.soap_left[3x5]", {4, 3, 3}}}) {
    const CheckpointTensor* tensor = reader.find(Section::optim, std::string("optim.state.") + name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, shape) << name;
  }
}

}  // namespace
}  // namespace sherd::test
