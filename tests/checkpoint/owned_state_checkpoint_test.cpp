// State of whole matrices goes to the new owners, value by value: checkpoints and state dicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/optim/soap.h>

#include "support/owned_values.h"
#include "support/sgd.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr double kSoapRate = 0.125;

/// Matrices, a stack, fused rows and heads, which `tp` ranks share, under SOAP, a gain under AdamW. Gradients have few bits:
/// their averages over 1 to 4 ranks are exact.
struct SoapTrained : GivenGradients {
  std::optional<Optimizer> optimizer;

  SoapTrained(RankContext& r, Strategy strategy, int tp) {
    const DeviceMesh mesh(r.world, {{"shard", r.world->size() / tp}, {"tp", tp}});
    add("matrix.weight", {9, 5});
    add("stack.weight", {5, 4, 3});
    add("fused.weight", {6, 4}).set_row_blocks(stacked_blocks({4, 2}, {"q", "k"}));
    add("heads.weight", {4 / tp * 3, 5})
        .set_row_blocks(head_blocks(4 / tp, 3))
        .set_tensor_shard({"tp", 0, tp, mesh.coordinate("tp")});
    add("gain.weight", {3});
    const Routing routing = route(*this, {.optimizer = Soap::kName});
    fully_shard(*this, mesh, {.strategy = strategy});
    optimizer.emplace(*this, routing, OptimizerOptions{.further = {Soap::factory()}});
  }
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (const GlobalRun& run : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
        for (int64_t k = 0; k < run.count; ++k) {
          const int64_t i = run.global.value + k;
          g[static_cast<size_t>(run.local.value + k)] =
              static_cast<float>((i * i * 37 + i * 11 + step * 29) % 61 - 30) / 64;
        }
      ops::copy_from_host(p.grad().device().compute(), p.grad(), g.data(), p.grad().nbytes());
    }
  }
  void train_to(int end) {
    while (step < end) train(*optimizer, kSoapRate);
  }
  std::vector<std::vector<float>> weights(Stream& s) {
    std::vector<std::vector<float>> all;
    for (auto& [name, p] : named_parameters()) all.push_back(ops::to_floats(s, p.dtensor().full_tensor(s)));
    return all;
  }
};

struct SoapState {
  std::vector<std::vector<float>> weights;
  OwnedValues::Map owned;
};

/// Runs `body` on each rank, and returns what the ranks have afterwards.
SoapState after(int ranks, Strategy strategy, const std::function<void(SoapTrained&, RankContext&)>& body,
                int tp = 1) {
  SoapState result;
  OwnedValues owned;
  test::launch(ranks, [&](RankContext& r) {
    SoapTrained run(r, strategy, tp);
    body(run, r);
    owned.add(run.optimizer->owned_state(), r.device->compute());
    auto weights = run.weights(r.device->compute());
    if (r.world->rank() == 0) result.weights = std::move(weights);
  });
  result.owned = owned.values();
  return result;
}

TEST(OwnedStateCheckpoint, SavedOnFourRanksIsResumedOnThreeAndOnOneValueByValue) {
  const TemporaryFolder folder;
  const auto save = [&](SoapTrained& run, RankContext& r) {
    run.train_to(3);
    CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer), {.folder = folder / "run"});
    saver.save({.step = 3});
  };
  const SoapState saved = after(4, Strategy::optim_grads_params, save);
  const SoapState straight =
      after(1, Strategy::no_shard, [](SoapTrained& run, RankContext&) { run.train_to(6); });
  const CheckpointReader reader = CheckpointReader::open(folder / "run/step_00000003");
  const CheckpointTensor* left = reader.find(Section::optim, "optim.state.stack.weight.soap_left");
  ASSERT_NE(left, nullptr);
  EXPECT_EQ(left->shape, (Shape{5, 4, 4}));
  EXPECT_NE(reader.find(Section::optim, "optim.state.fused.weight.soap_right_basis[k]"), nullptr);
  for (const auto& [ranks, strategy] : {std::pair(3, Strategy::optim_grads_params),
                                        {3, Strategy::no_shard},
                                        {1, Strategy::optim},
                                        {4, Strategy::optim_grads}}) {
    const auto load = [&](SoapTrained& run, RankContext&) {
      resume(folder / "run", run, &*run.optimizer);
      run.step = 3;
    };
    const SoapState resumed = after(ranks, strategy, load);
    EXPECT_EQ(resumed.owned, saved.owned) << ranks;
    EXPECT_EQ(resumed.weights, saved.weights) << ranks;
    const SoapState later = after(ranks, strategy, [&](SoapTrained& run, RankContext& r) {
      load(run, r);
      run.train_to(6);
    });
    EXPECT_EQ(later.owned, straight.owned) << ranks;
    EXPECT_EQ(later.weights, straight.weights) << ranks;
  }
}

TEST(OwnedStateCheckpoint, HeadsGoToOtherTensorParallelRanks) {
  const TemporaryFolder folder;
  const SoapState straight =
      after(1, Strategy::no_shard, [](SoapTrained& run, RankContext&) { run.train_to(4); });
  ASSERT_EQ(straight.owned.at("heads.weight soap_left[3x5]").size(), 4u * 3 * 3);
  for (const int from : {1, 2, 4}) {
    const std::string name = folder / std::to_string(from);
    const SoapState saved = after(
        4, Strategy::optim_grads_params,
        [&](SoapTrained& run, RankContext& r) {
          run.train_to(2);
          CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer), {.folder = name});
          saver.save({.step = 2});
        },
        from);
    for (const auto& [ranks, tp] : {std::pair(1, 1), {2, 2}, {4, 2}, {4, 4}}) {
      const auto load = [&](SoapTrained& run, RankContext&) {
        resume(name, run, &*run.optimizer);
        run.step = 2;
      };
      EXPECT_EQ(after(ranks, Strategy::optim, load, tp).owned, saved.owned) << from << " " << tp;
      const SoapState later = after(
          ranks, Strategy::optim,
          [&](SoapTrained& run, RankContext& r) {
            load(run, r);
            run.train_to(4);
          },
          tp);
      EXPECT_EQ(later.owned, straight.owned) << from << " " << tp;
    }
  }
}

TEST(OwnedStateDict, EveryKindBringsTheStateBack) {
  for (const DictKind kind : {DictKind::on_first, DictKind::on_all, DictKind::sharded}) {
    std::vector<StateDict> dicts(4);
    const SoapState saved = after(4, Strategy::optim_grads_params, [&](SoapTrained& run, RankContext& r) {
      run.train_to(2);
      dicts[static_cast<size_t>(r.world->rank())] = state_dict(run, &*run.optimizer, kind);
    });
    if (kind != DictKind::sharded) {
      const auto values = dicts[0].optimizer.at("optim.state.stack.weight.soap_left").values<float>();
      EXPECT_EQ(std::vector<float>(values.begin(), values.end()), saved.owned.at("stack.weight soap_left"));
    }
    const int ranks = kind == DictKind::sharded ? 4 : 3;
    const SoapState loaded =
        after(ranks, Strategy::optim_grads_params, [&](SoapTrained& run, RankContext& r) {
          load_state_dict(run, &*run.optimizer, dicts[static_cast<size_t>(r.world->rank())], kind);
        });
    EXPECT_EQ(loaded.owned, saved.owned) << static_cast<int>(kind);
    EXPECT_EQ(loaded.weights, saved.weights) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace sherd::test
