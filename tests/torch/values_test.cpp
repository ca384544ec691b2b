// Sharded models of libtorch modules compute what one rank does, bit for bit.
#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/local_shards.h>

#include "torch/net.h"

namespace torch_test {
namespace {

TEST(TorchValues, Gradients) { Comparison<Net>{net_loss, wrap_blocks}.run(); }

TEST(TorchValues, RootAlone) {
  Comparison<Net>{net_loss, [](Net&, const auto&, const auto&) {}}.run();
}

TEST(TorchValues, SeveralStepsOfTorchsOwnAdamW) {
  constexpr int kSteps = 4;
  torch::manual_seed(7);
  Net first;
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
  for (const int ranks : {1, 3, 4}) {
    at::set_num_threads(1);
    Net plain;
    copy_weights(*first, *plain);
    torch::optim::AdamW optimizer(plain->parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Values> each;
      for (int r = 0; r < ranks; ++r) {
        optimizer.zero_grad();
        net_loss(plain, step * ranks + r).backward();
        each.push_back(gradients(*plain));
      }
      const Values g = mean(each);
      for (auto& p : plain->named_parameters()) p.value().mutable_grad() = g.at(p.key());
      optimizer.step();
    }
    Values want;
    for (auto& p : plain->named_parameters()) want[p.key()] = p.value().detach().clone();
    for (const Strategy strategy : strategies()) {
      launch(ranks, [&](RankContext& rank) {
        Net model;
        copy_weights(*first, *model);
        FullyShardOptions o;
        o.strategy = strategy;
        sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
        sherd::torch::LocalShards shards(*model);
        torch::optim::AdamW mine(shards.parameters(), options);
        for (int step = 0; step < kSteps; ++step) {
          model->zero_grad();  // as loops of libtorch's do
          net_loss(model, step * ranks + rank.world->rank()).backward();
          EXPECT_TRUE(shards.step([&] { mine.step(); }));
        }
        expect_weights(*model, want, where(rank, strategy));
      });
    }
  }
}

// Two microbatches for each rank, of numbers 2 r and 2 r + 1.
TEST(TorchValues, Accumulation) {
  torch::manual_seed(7);
  Net first;
  for (const int ranks : {1, 4}) {
    at::set_num_threads(1);
    std::vector<Values> one, two, both;
    for (int r = 0; r < ranks; ++r) {
      Net plain;
      copy_weights(*first, *plain);
      net_loss(plain, 2 * r).backward();
      one.push_back(gradients(*plain));
      net_loss(plain, 2 * r + 1).backward();
      both.push_back(gradients(*plain));
      plain->zero_grad();
      net_loss(plain, 2 * r + 1).backward();
      two.push_back(gradients(*plain));
    }
    const Values summed_last = mean(both);
    Values summed_each;
    for (auto& [name, g] : one.front()) {
      std::vector<torch::Tensor> a, b;
      for (int r = 0; r < ranks; ++r) {
        a.push_back(one[static_cast<size_t>(r)].at(name));
        b.push_back(two[static_cast<size_t>(r)].at(name));
      }
      summed_each[name] = tree_sum(a) + tree_sum(b);
      if (ranks > 1) summed_each[name] = summed_each[name] * (1.0f / static_cast<float>(ranks));
    }
    for (const Strategy strategy : strategies()) {
      for (const sherd::GradientSync sync : {sherd::GradientSync::by_strategy, sherd::GradientSync::last}) {
        const bool each = sync == sherd::GradientSync::by_strategy && ranks > 1 &&
                          (strategy == Strategy::optim_grads || strategy == Strategy::optim_grads_params);
        launch(ranks, [&](RankContext& rank) {
          Net model;
          copy_weights(*first, *model);
          FullyShardOptions o;
          o.strategy = strategy;
          sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
          {
            const sherd::Accumulate accumulate(sherd::torch::root_of(*model), sync);
            net_loss(model, 2 * rank.world->rank()).backward();
          }
          net_loss(model, 2 * rank.world->rank() + 1).backward();
          expect_gradients(*model, each ? summed_each : summed_last, where(rank, strategy));
        });
      }
    }
  }
}

// Both objectives' graphs are there before the first backward; or one backward goes through both calls of every unit.
TEST(TorchValues, SeveralForwardsBeforeTheirBackwards) {
  torch::manual_seed(7);
  Net first;
  for (const bool together : {false, true}) {
    const auto pass = [together](Net& model, int r) {
      const torch::Tensor a = net_loss(model, 2 * r), b = net_loss(model, 2 * r + 1);
      if (together) return (a + b).backward();
      a.backward();
      b.backward();
    };
    for (const int ranks : {1, 3}) {
      at::set_num_threads(1);
      std::vector<Values> each;
      for (int r = 0; r < ranks; ++r) {
        Net plain;
        copy_weights(*first, *plain);
        pass(plain, r);
        each.push_back(gradients(*plain));
      }
      const Values want = mean(each);
      for (const Strategy strategy : strategies()) {
        // Backwards of their own are summed over ranks one by one.
        if (ranks > 1 && !together && (strategy == Strategy::optim_grads || strategy == Strategy::optim_grads_params)) continue;
        launch(ranks, [&](RankContext& rank) {
          Net model;
          copy_weights(*first, *model);
          FullyShardOptions o;
          o.strategy = strategy;
          sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
          pass(model, rank.world->rank());
          expect_gradients(*model, want, where(rank, strategy));
        });
      }
    }
  }
}

// Forwards without a backward, with and without a graph, and one whose graph lives on, leave no trace.
TEST(TorchValues, EvaluationAndDroppedGraphs) {
  torch::manual_seed(7);
  Net first;
  at::set_num_threads(1);
  std::vector<Values> each;
  for (int r = 0; r < 3; ++r) {
    Net plain;
    copy_weights(*first, *plain);
    net_loss(plain, r).backward();
    each.push_back(gradients(*plain));
  }
  const Values want = mean(each);
  for (const Strategy strategy : strategies()) {
    launch(3, [&](RankContext& rank) {
      Net model;
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
      sherd::torch::LocalShards shards(*model);
      torch::Tensor kept;
      for (int step = 0; step < 3; ++step) {
        {
          const torch::NoGradGuard no_grad;
          EXPECT_TRUE(torch::equal(net_loss(model, 5), net_loss(first, 5)));
        }
        net_loss(model, 6);  // its graph goes at once
        net_loss(model, rank.world->rank()).backward();
        expect_gradients(*model, want, where(rank, strategy));
        kept = net_loss(model, 7);  // and this one in the middle of the next step
        EXPECT_TRUE(shards.step([] {}));
      }
    });
  }
}

TEST(TorchValues, MixedPrecision) {
  torch::manual_seed(7);
  Net first;
  launch(2, [&](RankContext& rank) {
    std::vector<std::vector<float>> before;
    for (const Strategy strategy : strategies()) {
      Net model;
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      o.compute_dtype = sherd::DType::bf16;
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
      const torch::Tensor logits = model(batch(rank.world->rank()));
      EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
      logits.to(torch::kFloat).square().mean().backward();
      std::vector<std::vector<float>> sums;
      for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters()) {
        EXPECT_EQ(p.grad_shard().dtype(), sherd::DType::f32);
        if (strategy == Strategy::no_shard || strategy == Strategy::optim_grads_params)
          sums.push_back(sherd::ops::to_floats(rank.device->compute(), p.grad_shard()));
      }
      if (strategy == Strategy::no_shard) before = sums;
    }
    EXPECT_FALSE(before.empty());
  });
}

}  // namespace
}  // namespace torch_test
