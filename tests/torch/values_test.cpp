// Sharded models of libtorch modules compute what one rank does, bit for bit.
#include <sherd/fsdp/accumulate.h>
#include <sherd/optim/optimizer.h>
#include <sherd/torch/gradients.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>

#include "torch/net.h"

namespace torch_test {
namespace {

TEST(TorchValues, Gradients) { Comparison<Net>{net_loss, wrap_blocks}.run(); }

TEST(TorchValues, RootAlone) {
  Comparison<Net>{net_loss, [](Net&, const auto&, const auto&) {}}.run();
}

/// Gradients of four ranks with other options: any mesh, layout and routing.
void expect_gradients_of_four(const std::function<sherd::DeviceMesh(const RankContext&)>& mesh_for,
                              FullyShardOptions options, const sherd::RootOptions& root_options = {}) {
  torch::manual_seed(7);
  Net first;
  const Values want = mean_gradients(first, 4, net_backward);
  for (const Strategy strategy : strategies()) {
    launch(4, [&](RankContext& rank) {
      Net model;
      copy_weights(*first, *model);
      FullyShardOptions o = options;
      o.strategy = strategy;
      sherd::ModuleBase& root = sherd::torch::root_of(*model);
      const sherd::Routing routing = sherd::route(root, {.optimizer = sherd::Algorithm::muon});
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_for(rank), o, root_options);
      sherd::Optimizer optimizer(root, routing, {});
      for (int step = 0; step < 2; ++step) {  // the second gathers ahead
        net_loss(model, rank.world->rank()).backward();
        expect_gradients(*model, want, where(rank, strategy));
        optimizer.step(0);
      }
    });
  }
}

TEST(TorchValues, Layouts) {
  for (const sherd::LayoutPolicy layout :
       {sherd::LayoutPolicy::even_rows, sherd::LayoutPolicy::whole_param}) {
    FullyShardOptions o;
    o.layout = layout;
    o.bucket_elements = 500;
    expect_gradients_of_four(mesh_of, o);
  }
}

TEST(TorchValues, Options) {
  expect_gradients_of_four(mesh_of, {}, {.prefetch = 0, .overlap_reduce = false});
  expect_gradients_of_four(mesh_of, {.reshard_after_forward = false},
                           {.prefetch = 3, .overlap_reduce = false});
}

TEST(TorchValues, Replicas) {
  for (const sherd::Outer outer : {sherd::Outer::no_shard, sherd::Outer::optim}) {
    FullyShardOptions o;
    o.outer = outer;
    expect_gradients_of_four(
        [](const RankContext& rank) {
          return sherd::DeviceMesh(rank.world, {{"replicate", 2}, {"shard", 2}});
        },
        o);
  }
}

// Two models in one backward, the result of one being the argument of the other.
TEST(TorchValues, TwoModelsInOneBackward) {
  torch::manual_seed(7);
  Block first(5), second(5);
  const auto loss = [](Block& a, Block& b, int r) { return b(a(random({3, 5}, r))).square().mean(); };
  at::set_num_threads(1);
  std::vector<Values> each_a, each_b;
  for (int r = 0; r < 2; ++r) {
    Block a(5), b(5);
    copy_weights(*first, *a);
    copy_weights(*second, *b);
    loss(a, b, r).backward();
    each_a.push_back(gradients(*a));
    each_b.push_back(gradients(*b));
  }
  const Values want_a = mean(each_a), want_b = mean(each_b);
  for (const Strategy strategy : strategies()) {
    launch(2, [&](RankContext& rank) {
      Block a(5), b(5);
      copy_weights(*first, *a);
      copy_weights(*second, *b);
      FullyShardOptions o;
      o.strategy = strategy;
      sherd::torch::fully_shard(*a, mesh_of(rank), o);
      sherd::torch::fully_shard(*b, mesh_of(rank), o);
      loss(a, b, rank.world->rank()).backward();
      expect_gradients(*a, want_a, where(rank, strategy));
      expect_gradients(*b, want_b, where(rank, strategy));
    });
  }
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
        Net model = sharded(first, rank, strategy);
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
          Net model = sharded(first, rank, strategy);
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

// Both objectives' graphs are there before the first backward; or one backward goes through both calls of
// every unit.
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
      const Values want = mean_gradients(first, ranks, pass);
      for (const Strategy strategy : strategies()) {
        // Backwards of their own are summed over ranks one by one.
        if (ranks > 1 && !together &&
            (strategy == Strategy::optim_grads || strategy == Strategy::optim_grads_params))
          continue;
        launch(ranks, [&](RankContext& rank) {
          Net model = sharded(first, rank, strategy);
          pass(model, rank.world->rank());
          expect_gradients(*model, want, where(rank, strategy));
        });
      }
    }
  }
}

// Forwards without a backward, with and without a graph, and one whose graph is kept, leave no trace.
TEST(TorchValues, EvaluationAndDroppedGraphs) {
  torch::manual_seed(7);
  Net first;
  const Values want = mean_gradients(first, 3, net_backward);
  for (const Strategy strategy : strategies()) {
    launch(3, [&](RankContext& rank) {
      Net model = sharded(first, rank, strategy);
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

// bf16 in forward and backward, f32 in sums: the same bits under all strategies, close to f32.
TEST(TorchValues, MixedPrecision) {
  torch::manual_seed(7);
  Net first;
  const Values want =
      mean_gradients(first, 2, [](Net& plain, int r) { plain(batch(r)).square().mean().backward(); });
  launch(2, [&](RankContext& rank) {
    std::map<std::string, std::vector<float>> before;
    for (const Strategy strategy : strategies()) {
      Net model;
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      o.compute_dtype = sherd::DType::bf16;
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
      EXPECT_EQ(model->head->weight.scalar_type(), torch::kBFloat16);
      const torch::Tensor logits = model(batch(rank.world->rank()));
      EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
      logits.to(torch::kFloat).square().mean().backward();
      for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters()) {
        // Gathered over all ranks: pieces of the same name differ with the strategy's cut, the unsharded
        // gradient does not.
        const auto mine = sherd::ops::to_floats(rank.device->compute(), p.grad_shard());
        const auto near = part_of(want.at(name), p.shard_range());
        ASSERT_EQ(mine.size(), near.size());
        double error = 0, size = 0;
        for (size_t i = 0; i < mine.size(); ++i) {
          error += (mine[i] - near[i]) * (mine[i] - near[i]);
          size += near[i] * near[i];
        }
        EXPECT_LE(error, 0.03 * 0.03 * size + 1e-12) << name << ", " << where(rank, strategy);
        if (strategy == Strategy::optim) {
          before[name] = mine;
        } else if (strategy != Strategy::no_shard) {
          EXPECT_TRUE(same_bits(before[name], mine)) << name << ", " << where(rank, strategy);
        }
      }
    }
  });
}

// Modules of libtorch with weights or gradients in 16 bits: the same bits under all strategies, and no shards for torch's own optimizers.
TEST(TorchValues, WeightsWithoutFp32Masters) {
  torch::manual_seed(7);
  Net first;
  for (const sherd::Master master : {sherd::Master::bf16, sherd::Master::split, sherd::Master::f32})
    launch(2, [&](RankContext& rank) {
      std::map<std::string, std::vector<float>> before;
      for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
        Net model;
        copy_weights(*first, *model);
        FullyShardOptions o;
        o.strategy = strategy;
        o.compute_dtype = sherd::DType::bf16;
        o.master = master;
        if (master != sherd::Master::bf16) o.grad_dtype = sherd::DType::bf16;
        sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});
        sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
        sherd::ModuleBase& root = sherd::torch::root_of(*model);
        sherd::torch::Optimizer optimizer(*model, {.state_dtype = sherd::DType::bf16});
        for (int step = 0; step < 3; ++step) {
          model(batch(rank.world->rank())).to(torch::kFloat).square().mean().backward();
          for (auto& [name, norm] : sherd::torch::gradient_norms(*model)) EXPECT_GT(norm, 0) << name;
          optimizer.step(0.01);
        }
        for (auto& [name, p] : root.named_parameters()) {
          const auto all =
              sherd::ops::to_floats(rank.device->compute(), p.dtensor().full_tensor(rank.device->compute()));
          if (strategy == Strategy::optim) before[name] = all;
          EXPECT_TRUE(same_bits(before[name], all)) << name << ", " << where(rank, strategy);
        }
        EXPECT_THROW(sherd::torch::LocalShards shards(*model), sherd::InvalidArgument);
      }
    });
}

TEST(TorchValues, StateIn8Bits) {
  torch::manual_seed(7);
  Block first(64);
  launch(3, [&](RankContext& rank) {
    sherd::Stream& stream = rank.device->compute();
    std::vector<float> before;
    for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads_params}) {
      Block model(64);
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      o.whole_state_blocks = true;
      sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});
      sherd::torch::fully_shard(*model, mesh_of(rank), o);
      sherd::torch::Optimizer optimizer(*model, {.state_dtype = sherd::DType::i8});
      for (int step = 0; step < 3; ++step) {
        model(random({4, 64}, rank.world->rank())).square().mean().backward();
        optimizer.step(0.01);
      }
      std::vector<float> all;
      for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
        for (const float v : sherd::ops::to_floats(stream, p.dtensor().full_tensor(stream))) all.push_back(v);
      if (before.empty()) before = all;
      EXPECT_TRUE(same_bits(before, all)) << where(rank, strategy);
    }
  });
}

}  // namespace
}  // namespace torch_test
