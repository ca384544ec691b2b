// State of torch::optim optimizers in checkpoints: other ranks, other strategies, other optimizers of the same rule.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>

#include "temporary_folder.h"
#include "torch/net.h"

namespace torch_test {
namespace {

using sherd::torch::LocalShards;
using sherd::torch::OptimizerState;
using ::testing::HasSubstr;

// A model and one optimizer over its shards.
template <class Optimizer>
struct KeptTrainer {
  KeptTrainer(const RankContext& rank, const Net& first, Strategy strategy,
              const typename OptimizerState<Optimizer>::Options& options)
      : model(sharded(first, rank, strategy)),
        shards(*model),
        optimizer(shards.parameters(), options),
        state(shards.keep_state(optimizer)) {}
  sherd::ModuleBase& root() { return sherd::torch::root_of(*model); }
  void step(int number) {
    net_backward(model, number);
    EXPECT_TRUE(shards.step([&] { optimizer.step(); }));
  }
  Net model;
  LocalShards shards;
  Optimizer optimizer;
  sherd::Optimizer& state;
};

// Runs plain libtorch with the gradients of `ranks` ranks, averaged.
template <class Optimizer>
void step_plain(Net& plain, Optimizer& optimizer, int ranks, int number) {
  const Values mean = mean_gradients(plain, ranks, [&](Net& model, int) { net_backward(model, number); });
  for (auto& p : plain->named_parameters()) p.value().mutable_grad() = mean.at(p.key());
  optimizer.step();
}

template <class Optimizer>
void expect_state(KeptTrainer<Optimizer>& trainer, Net& plain, Optimizer& optimizer,
                  const std::string& where) {
  const sherd::StateDict dict = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
  using State = OptimizerState<Optimizer>;
  for (auto& p : plain->named_parameters()) {
    auto& state = static_cast<typename State::Param&>(*optimizer.state().at(p.value().unsafeGetTensorImpl()));
    const auto& options =
        static_cast<const typename State::Options&>(optimizer.param_groups().front().options());
    const sherd::torch::StateFields fields = State::fields(state, options);
    const std::string name = "optim.state." + p.key() + ".";
    for (const auto& [key, tensor] : fields.tensors) {
      const auto have = dict.optimizer.at(name + key).template values<float>();
      const auto want = part_of(*tensor, {sherd::ParamIndex(0), sherd::ParamIndex(tensor->numel())});
      EXPECT_TRUE(same_bits({have.begin(), have.end()}, want)) << name << key << ", " << where;
    }
    if (fields.step) {
      EXPECT_EQ(dict.optimizer.at(name + "step").template values<float>()[0],
                static_cast<float>(*fields.step));
    }
  }
}

// Two steps on 4 ranks, a checkpoint, two steps on others.
template <class Optimizer>
void resumes_with(const typename OptimizerState<Optimizer>::Options& options) {
  TemporaryFolder folder;
  torch::manual_seed(3);
  const Net first;
  launch(4, [&](RankContext& rank) {
    KeptTrainer<Optimizer> trainer(rank, first, Strategy::optim_grads_params, options);
    for (int step = 0; step < 2; ++step) trainer.step(step);
    sherd::CheckpointSaver saver(rank.world, sherd::checkpoint_tensors(trainer.root(), &trainer.state),
                                 {.folder = folder.path()});
    saver.save({.step = 2});
  });
  for (const int ranks : {1, 3, 4}) {
    Net plain;
    copy_weights(*first, *plain);
    Optimizer optimizer(plain->parameters(), options);
    for (int step = 0; step < 4; ++step) step_plain(plain, optimizer, step < 2 ? 4 : ranks, step);
    Values after;
    for (auto& p : plain->named_parameters()) after[p.key()] = p.value().detach();
    for (const Strategy strategy : strategies())
      launch(ranks, [&](RankContext& rank) {
        KeptTrainer<Optimizer> trainer(rank, first, strategy, options);
        sherd::resume(folder.path(), trainer.root(), &trainer.state);
        EXPECT_EQ(trainer.state.steps(), 2);
        for (int step = 2; step < 4; ++step) trainer.step(step);
        expect_weights(*trainer.model, after, where(rank, strategy));
        expect_state(trainer, plain, optimizer, where(rank, strategy));
      });
  }
}

TEST(TorchOptimizerState, AdamResumesOnOtherRanksBitForBit) {
  resumes_with<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
}

TEST(TorchOptimizerState, AdamWResumesOnOtherRanksBitForBit) {
  resumes_with<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

TEST(TorchOptimizerState, SgdWithMomentumResumesOnOtherRanksBitForBit) {
  // With dampening the first update of a momentum buffer differs from the later ones.
  resumes_with<torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).dampening(0.5));
}

TEST(TorchOptimizerState, RmspropResumesOnOtherRanksBitForBit) {
  resumes_with<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
}

TEST(TorchOptimizerState, AdagradResumesOnOtherRanksBitForBit) {
  resumes_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1));
}

TEST(TorchOptimizerState, CheckpointBeforeTheFirstUpdateLeavesSgdWithoutBuffers) {
  torch::manual_seed(3);
  const Net first;
  const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9).dampening(0.5);
  launch(2, [&](RankContext& rank) {
    using Trainer = KeptTrainer<torch::optim::SGD>;
    Trainer trainer(rank, first, Strategy::optim_grads, options);
    const auto before = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    for (int step = 0; step < 2; ++step) trainer.step(step);
    const auto after = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    // The trainer that has stepped goes back.
    sherd::load_state_dict(trainer.root(), &trainer.state, before, sherd::DictKind::on_all);
    for (int step = 0; step < 2; ++step) trainer.step(step);
    const auto again = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    for (const auto& [name, value] : after.model)
      EXPECT_TRUE(value.data == again.model.at(name).data) << name;
    for (const auto& [name, value] : after.optimizer)
      EXPECT_TRUE(value.data == again.optimizer.at(name).data) << name;
  });
}

TEST(TorchOptimizerState, FrozenParametersKeepTheirStateAndTheirCount) {
  torch::manual_seed(3);
  const Net first;
  launch(2, [&](RankContext& rank) {
    KeptTrainer<torch::optim::SGD> trainer(rank, first, Strategy::optim_grads_params,
                                           torch::optim::SGDOptions(1e-2).momentum(0.9));
    trainer.step(0);
    trainer.model->tokens->weight.set_requires_grad(false);
    trainer.step(1);
    const auto state = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    EXPECT_EQ(state.optimizer.at("optim.state.tokens.weight.step").values<float>()[0], 1);
    EXPECT_EQ(state.optimizer.at("optim.state.head.weight.step").values<float>()[0], 2);
  });
}

TEST(TorchOptimizerState, AdamWResumesAsSherdsAdamW) {
  TemporaryFolder folder;
  torch::manual_seed(3);
  const Net first;
  launch(2, [&](RankContext& rank) {
    KeptTrainer<torch::optim::AdamW> trainer(rank, first, Strategy::optim_grads_params,
                                             torch::optim::AdamWOptions(1e-2).weight_decay(0));
    for (int step = 0; step < 2; ++step) trainer.step(step);
    sherd::CheckpointSaver saver(rank.world, sherd::checkpoint_tensors(trainer.root(), &trainer.state),
                                 {.folder = folder.path()});
    saver.save({.step = 2});
    const auto want = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);

    Net model;
    sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});
    copy_weights(*first, *model);
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
    sherd::torch::Optimizer optimizer(*model);
    sherd::resume(folder.path(), sherd::torch::root_of(*model), &optimizer);
    const auto have = sherd::state_dict(sherd::torch::root_of(*model), &optimizer, sherd::DictKind::on_all);
    ASSERT_EQ(have.optimizer.size(), want.optimizer.size());
    for (const auto& [name, value] : want.optimizer)
      EXPECT_TRUE(value.data == have.optimizer.at(name).data) << name;
  });
}

TEST(TorchOptimizerState, SkippedStepsLeaveItAlone) {
  torch::manual_seed(3);
  const Net first;
  launch(2, [&](RankContext& rank) {
    KeptTrainer<torch::optim::AdamW> trainer(rank, first, Strategy::optim_grads_params,
                                             torch::optim::AdamWOptions(1e-2));
    trainer.step(0);
    const auto before = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    const double inf = rank.world->rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
    (net_loss(trainer.model, 1) * inf).backward();
    EXPECT_FALSE(trainer.shards.step([&] { trainer.optimizer.step(); }));
    EXPECT_EQ(trainer.shards.skipped(), 1);
    const auto after = sherd::state_dict(trainer.root(), &trainer.state, sherd::DictKind::on_all);
    for (const auto& [name, value] : before.optimizer)
      EXPECT_TRUE(value.data == after.optimizer.at(name).data) << name;
  });
}

TEST(TorchOptimizerState, SeveralOptimizersAreKeptTogether) {
  torch::manual_seed(3);
  const Net first;
  launch(2, [&](RankContext& rank) {
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    LocalShards shards(*model);
    std::vector<at::Tensor> matrices, others;
    for (const at::Tensor& p : shards.parameters()) (p.dim() >= 2 ? matrices : others).push_back(p);
    torch::optim::SGD sgd(matrices, torch::optim::SGDOptions(1e-2).momentum(0.9));
    torch::optim::AdamW adamw(others, torch::optim::AdamWOptions(1e-2));
    EXPECT_THAT(message_of([&] { shards.keep_state(sgd); }),
                HasSubstr("parameters in none of the optimizers: blocks.0.norm.weight"));
    EXPECT_THAT(message_of([&] { shards.keep_state(sgd, sgd, adamw); }),
                HasSubstr("parameters in an optimizer twice: "));
    torch::optim::SGD whole(model->parameters(), torch::optim::SGDOptions(1e-2));
    EXPECT_THAT(message_of([&] { shards.keep_state(sgd, adamw, whole); }),
                HasSubstr("tensors that are not shards of this model"));
    sherd::Optimizer& state = shards.keep_state(sgd, adamw);
    EXPECT_THAT(message_of([&] { shards.keep_state(sgd, adamw); }), HasSubstr("called twice"));
    net_backward(model, 1);
    EXPECT_THAT(message_of([&] { state.step(0); }), HasSubstr("call LocalShards::step()"));
  });
}

TEST(TorchOptimizerState, StateOfAnOptimizerThatOutlivesTheShardsSaysSo) {
  torch::manual_seed(3);
  const Net first;
  launch(2, [&](RankContext& rank) {
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    std::optional<LocalShards> shards(*model);
    const std::vector<at::Tensor> pieces = shards->parameters();
    torch::optim::AdamW optimizer(pieces, torch::optim::AdamWOptions(1e-2));
    shards->keep_state(optimizer);
    net_backward(model, 1);
    shards->step([&] { optimizer.step(); });
    shards.reset();
    for (const at::Tensor& piece : pieces) {
      if (piece.numel() == 0) continue;
      auto& state =
          static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(piece.unsafeGetTensorImpl()));
      EXPECT_THAT(message_of([&] { state.exp_avg().sum().item<float>(); }),
                  HasSubstr("whose sherd::torch::LocalShards is gone"));
    }
  });
}

}  // namespace
}  // namespace torch_test
