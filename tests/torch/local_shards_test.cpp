// LocalShards: shapes of shards, and groups of parameters that are the same on all ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <set>
#include <vector>

#include <sherd/torch/local_shards.h>

#include "torch/net.h"

namespace torch_test {
namespace {

// One parameter of each number of dimensions.
struct ShapesImpl : torch::nn::Module {
  ShapesImpl()
      : scale(register_parameter("scale", torch::ones({}))),
        bias(register_parameter("bias", torch::ones({5}))),
        matrix(register_parameter("matrix", torch::ones({5, 7}))),
        kernel(register_parameter("kernel", torch::ones({3, 2, 3, 3}))),
        single(register_parameter("single", torch::ones({1, 11}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x * (scale + bias.sum() + matrix.sum() + kernel.sum() + single.sum());
  }
  torch::Tensor scale, bias, matrix, kernel, single;
};
SHERD_TORCH_MODULE(Shapes);

TEST(TorchLocalShards, ShardsHaveTheNumberOfDimensionsOfTheirParameterOnEveryRank) {
  for (const int ranks : {1, 2, 5, 16}) {
    for (const Strategy strategy : strategies())
      launch(ranks, [&](RankContext& rank) {
        Shapes model;
        FullyShardOptions options;
        options.strategy = strategy;
        sherd::torch::fully_shard(*model, mesh_of(rank), options);
        const sherd::torch::LocalShards shards(*model);
        const auto root = sherd::torch::root_of(*model).named_parameters();
        const auto named = shards.named_parameters();
        ASSERT_EQ(named.size(), root.size());
        for (size_t i = 0; i < root.size(); ++i) {
          const auto& [name, shard] = named[i];
          const sherd::Parameter& p = root[i].second;
          const std::string at = name + ", " + where(rank, strategy);
          EXPECT_EQ(shard.numel(), p.shard_range().size()) << at;
          EXPECT_TRUE(shard.is_contiguous()) << at;
          EXPECT_EQ(shard.dim(), std::max<int64_t>(1, static_cast<int64_t>(p.shape().size()))) << at;
          if (shard.dim() < 2) continue;
          const int64_t row = p.numel() / p.shape()[0];
          if (p.shard_range().begin.value % row == 0 && shard.numel() % row == 0) {
            EXPECT_EQ(shard.size(0), shard.numel() / row) << at;
            for (int64_t d = 1; d < shard.dim(); ++d)
              EXPECT_EQ(shard.size(d), p.shape()[static_cast<size_t>(d)]) << at;
          }
        }
      });
  }
}

std::vector<torch::optim::OptimizerParamGroup> decay_groups(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> decay, no_decay;
  for (const at::Tensor& p : parameters) (p.dim() >= 2 ? decay : no_decay).push_back(p);
  const auto group = [](std::vector<at::Tensor> tensors, double weight_decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(tensors), std::make_unique<torch::optim::AdamWOptions>(
                                torch::optim::AdamWOptions(1e-2).weight_decay(weight_decay)));
  };
  return {group(decay, 0.5), group(no_decay, 0)};
}

TEST(TorchLocalShards, WeightDecayByDimensionsIsThatOfOneRankBitForBit) {
  torch::manual_seed(3);
  const Net first;
  for (const int ranks : {1, 3, 32}) {  // 32: more than some parameters have rows
    Net plain;
    copy_weights(*first, *plain);
    torch::optim::AdamW optimizer(decay_groups(plain->parameters()));
    const auto pass = [](Net& model, int) { net_backward(model, 1); };
    for (int step = 0; step < 2; ++step) {
      const Values want = mean_gradients(plain, ranks, pass);
      for (auto& p : plain->named_parameters()) p.value().mutable_grad() = want.at(p.key());
      optimizer.step();
    }
    Values after;
    for (auto& p : plain->named_parameters()) after[p.key()] = p.value().detach();
    for (const Strategy strategy : strategies()) {
      if (ranks == 32 && strategy != Strategy::optim_grads_params) continue;
      launch(ranks, [&](RankContext& rank) {
        Net model = sharded(first, rank, strategy);
        sherd::torch::LocalShards shards(*model);
        torch::optim::AdamW own(decay_groups(shards.parameters()));
        for (int step = 0; step < 2; ++step) {
          net_backward(model, 1);
          shards.step([&] { own.step(); });
        }
        expect_weights(*model, after, where(rank, strategy));
      });
    }
  }
}

}  // namespace
}  // namespace torch_test
