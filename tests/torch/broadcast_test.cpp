// Values that ranks share: weights and buffers of rank 0, and statistics of all batches.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include <sherd/torch/broadcast.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/sync_batch_norm.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using ::testing::HasSubstr;

template <class Norm>
struct SyncTestNetImpl : torch::nn::Module {
  SyncTestNetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("fc", fc);
    mask = register_buffer("mask", torch::ones({2}, torch::kBool));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::relu(norm(conv(x))).mean(std::vector<int64_t>{2, 3}));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 4, 3)};
  Norm norm{torch::nn::BatchNormOptions(4)};
  torch::nn::Linear fc{4, 3};
  torch::Tensor mask;
};
struct SyncNetImpl : SyncTestNetImpl<sherd::torch::SyncBatchNorm> {};
SHERD_TORCH_MODULE(SyncNet);
struct PlainNetImpl : SyncTestNetImpl<torch::nn::BatchNorm2d> {};
TORCH_MODULE(PlainNet);

TEST(TorchBroadcast, RanksBeginWithTheValuesOfRankZero) {
  torch::manual_seed(5);
  const SyncNet first;
  {
    const torch::NoGradGuard no_grad;
    first->norm->running_mean.fill_(3);
    first->mask[1] = false;
  }
  launch(3, [&](RankContext& rank) {
    SyncNet model;
    if (rank.world->rank() == 0) copy_weights(*first, *model);
    sherd::torch::broadcast_from_rank_0(*model, mesh_of(rank));
    const auto params = first->named_parameters(), buffers = first->named_buffers();
    for (auto& p : model->named_parameters())
      EXPECT_TRUE(torch::equal(p.value(), params[p.key()])) << p.key();
    for (auto& b : model->named_buffers()) EXPECT_TRUE(torch::equal(b.value(), buffers[b.key()])) << b.key();
    sherd::torch::fully_shard(*model, mesh_of(rank));
    EXPECT_THAT(message_of([&] { sherd::torch::broadcast_from_rank_0(*model, mesh_of(rank)); }),
                HasSubstr("call it before fully_shard()"));
    {
      const torch::NoGradGuard no_grad;
      model->norm->running_var.fill_(rank.world->rank() + 7);
    }
    sherd::torch::broadcast_buffers(*model, mesh_of(rank));
    EXPECT_EQ(model->norm->running_var[0].item<float>(), 7);
  });
}

TEST(TorchBroadcast, SmallTensorsTravelTogetherAndLargeOnesAlone) {
  launch(2, [&](RankContext& rank) {
    const auto value = static_cast<double>(rank.world->rank() + 1);
    torch::nn::Module model;
    model.register_buffer("flag", torch::full({3}, value > 1, torch::kBool));  // 3 bytes before 8-byte words
    model.register_buffer("count", torch::tensor(static_cast<int64_t>(value)));
    const torch::Tensor strided = torch::full({4, 6}, value).t();
    model.register_buffer("strided", strided);
    model.register_buffer("none", torch::empty({0}));
    model.register_buffer("large", torch::full({(1 << 20) + 1}, value));  // of f32: beyond 4 MiB
    for (int i = 0; i < 40; ++i)
      model.register_parameter("w" + std::to_string(i), torch::full({5}, value, torch::kBFloat16));
    const auto before = rank.world->counts()["broadcast"].calls;
    sherd::torch::broadcast_from_rank_0(model, mesh_of(rank));
    EXPECT_EQ(rank.world->counts()["broadcast"].calls - before, 2);
    for (const auto& p : model.named_parameters()) EXPECT_TRUE(p.value().eq(1).all().item<bool>()) << p.key();
    for (const auto& b : model.named_buffers())
      EXPECT_TRUE(b.value().eq(b.key() == "flag" ? 0 : 1).all().item<bool>()) << b.key();
    EXPECT_TRUE(model.named_buffers()["strided"].is_same(strided));
  });
}

TEST(TorchBroadcast, OtherModulesOnOtherRanksAreRefused) {
  launch(2, [&](RankContext& rank) {
    torch::nn::Linear model(3, 2 + rank.world->rank());
    EXPECT_THAT(message_of([&] { sherd::torch::broadcast_from_rank_0(*model, mesh_of(rank)); }),
                HasSubstr("make the same modules on every rank"));
  });
}

// Rows of each rank; one rank has none.
int64_t rows_of(int rank) { return rank == 1 ? 0 : rank + 2; }

torch::Tensor images(int ranks) {
  int64_t rows = 0;
  for (int r = 0; r < ranks; ++r) rows += rows_of(r);
  return random({rows, 2, 6, 6}, 5) * 2 + 1;
}

torch::Tensor batch_of(int rank, int ranks) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += rows_of(r);
  return images(ranks).slice(0, begin, begin + rows_of(rank));
}

TEST(TorchSyncBatchNorm, TrainsAsOneRankWithTheWholeBatch) {
  torch::manual_seed(5);
  const PlainNet first;
  for (const int ranks : {1, 3, 4}) {
    at::set_num_threads(1);
    PlainNet whole;
    copy_weights(*first, *whole);
    whole->to(torch::kDouble);
    // The mean over ranks of each rank's sum.
    (whole(images(ranks).to(torch::kDouble)).pow(2).sum() / ranks).backward();
    const Values want = gradients(*whole);
    for (const Strategy strategy : strategies())
      launch(ranks, [&](RankContext& rank) {
        SyncNet model;
        copy_weights(*first, *model);
        FullyShardOptions options;
        options.strategy = strategy;
        sherd::torch::fully_shard(*model, mesh_of(rank), options);
        EXPECT_EQ(sherd::torch::share_batches(*model, mesh_of(rank)), 1);
        model(batch_of(rank.world->rank(), ranks)).pow(2).sum().backward();
        sherd::ModuleBase& root = sherd::torch::root_of(*model);
        for (auto& [name, p] : root.named_parameters()) {
          const auto have = sherd::ops::to_floats(sherd::runtime_of(root).device().compute(), p.grad_shard());
          const auto piece = part_of(want.at(name).to(torch::kFloat), p.shard_range());
          // Sums of 240 f32 products at most; those that cancel are of the size of the largest.
          const float tolerance = 240 * 6e-8f * std::max(1.0f, want.at(name).abs().max().item<float>());
          for (size_t i = 0; i < have.size(); ++i)
            EXPECT_NEAR(have[i], piece[i], tolerance) << name << ", " << where(rank, strategy);
        }
        for (auto& b : whole->named_buffers()) {
          const torch::Tensor own = model->named_buffers()[b.key()];
          EXPECT_TRUE(torch::allclose(own.to(torch::kDouble), b.value().to(torch::kDouble), 1e-6, 1e-6))
              << b.key() << ", " << where(rank, strategy);
        }
      });
  }
}

TEST(TorchSyncBatchNorm, RunningStatisticsAndEvaluationAreTheSameOnEveryRank) {
  torch::manual_seed(5);
  const PlainNet first;
  std::vector<torch::Tensor> means(3), outputs(3);
  launch(3, [&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.world->rank());
    SyncNet model;
    copy_weights(*first, *model);
    sherd::torch::share_batches(*model, mesh_of(rank));
    sherd::torch::fully_shard(*model, mesh_of(rank));
    sherd::torch::LocalShards shards(*model);
    torch::optim::SGD optimizer(shards.parameters(), torch::optim::SGDOptions(1e-2));
    for (int step = 0; step < 2; ++step) {
      model(batch_of(rank.world->rank(), 3)).pow(2).sum().backward();
      shards.step([&] { optimizer.step(); });
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    means[r] = model->norm->running_mean.clone();
    outputs[r] = model(images(3));
  });
  for (size_t r = 1; r < 3; ++r) {
    EXPECT_TRUE(torch::equal(means[0], means[r]));
    EXPECT_TRUE(torch::equal(outputs[0], outputs[r]));
  }
}

TEST(TorchSyncBatchNorm, SaysWhatIsMissing) {
  launch(1, [&](RankContext& rank) {
    PlainNet plain;
    EXPECT_THAT(message_of([&] { sherd::torch::share_batches(*plain, mesh_of(rank)); }),
                HasSubstr("no SyncBatchNorm"));
    sherd::torch::SyncBatchNorm norm(4);
    EXPECT_THAT(message_of([&] { norm(torch::zeros({3, 5})); }), HasSubstr("channels are dimension 1"));
    EXPECT_THAT(message_of([&] { norm(torch::zeros({1, 4})); }), HasSubstr("two or more"));
  });
}

}  // namespace
}  // namespace torch_test
