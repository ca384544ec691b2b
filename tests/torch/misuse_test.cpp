// Misuse of sharded libtorch modules, exceptions, and lifetimes.
#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/detail/torch_device.h>
#include <sherd/torch/device.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>
#include <sherd/torch/unsharded.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using torch::Tensor;

// A model on one rank, for what goes wrong.
void alone(const std::function<void(Net&)>& body, const FullyShardOptions& options = {}, int ranks = 2) {
  torch::manual_seed(7);
  Net first;
  launch(ranks, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), options);
    body(model);
  });
}
void expect_message(const std::vector<std::string>& parts, const std::function<void()>& f) {
  const std::string message = message_of(f);
  for (auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

// A device that reports to be a GPU.
class NoGpu final : public sherd::Device {
 public:
  sherd::DeviceKind kind() const override { return sherd::DeviceKind::cuda; }
  int ordinal() const override { return 3; }
  sherd::Allocator& allocator() override { return cpu_->allocator(); }
  sherd::KernelSet kernel_set() const override { return cpu_->kernel_set(); }
  sherd::Stream& compute() override { return cpu_->compute(); }
  std::unique_ptr<sherd::Stream> make_stream(std::string name, sherd::StreamPriority priority) override {
    return cpu_->make_stream(std::move(name), priority);
  }
  const std::string& label() const override { return cpu_->label(); }
  std::string describe() const override { return "no GPU"; }

 private:
  std::shared_ptr<sherd::Device> cpu_ = sherd::make_cpu_device();
};

TEST(TorchMisuse, GpusThatAreNotCompiledSayHowToTurnThemOn) {
  NoGpu gpu;
  EXPECT_EQ(sherd::torch::device_of(gpu), torch::Device(torch::kCUDA, 3));
  EXPECT_EQ(sherd::torch::device_of(*sherd::make_cpu_device()), torch::Device(torch::kCPU));
  try {
    sherd::torch::detail::TorchDevice::of(gpu);
  } catch (const sherd::NotCompiled& e) {
    EXPECT_NE(std::string(e.what()).find("-DSHERD_TORCH_CUDA=ON"), std::string::npos) << e.what();
    return;
  } catch (const std::exception&) {
  }
  GTEST_SKIP() << "this build has the adapter for GPUs";
}

TEST(TorchMisuse, MovingAndCopyingAreRefused) {
  alone([](Net& model) {
    expect_message({"Module::to()", "fully_shard"}, [&] { model->blocks->ptr(1)->to(torch::kFloat); });
    // Refused before anything has been converted, buffers included.
    expect_message({"Module::to() of unit", "before fully_shard"}, [&] { model->to(torch::kDouble); });
    std::ostringstream file;
    expect_message({"sherd"}, [&] { torch::save(model.ptr(), file); });
    expect_message({"clone"}, [&] { model->blocks->ptr(1)->clone(); });
    net_loss(model, 0).backward();  // and it still works
  });
  launch(1, [](RankContext& rank) {
    torch::nn::Sequential layers(torch::nn::BatchNorm1d(4),
                                 sherd::torch::Holder<torch::nn::LinearImpl>(4, 4));
    sherd::torch::fully_shard(*layers, mesh_of(rank));
    expect_message({"before fully_shard"}, [&] { layers->to(torch::kDouble); });
    for (const Tensor& b : layers->buffers()) EXPECT_NE(b.scalar_type(), torch::kDouble);
  });
}

TEST(TorchMisuse, CallsPastTheHolder) {
  for (const Strategy strategy : strategies()) {
    FullyShardOptions o;
    o.strategy = strategy;
    alone(
        [](Net& model) {
          BlockImpl& block = *model->blocks[1]->as<BlockImpl>();
          expect_message(
              {"blocks.1.norm.weight", "blocks.1", "module(x) by its holder, not module->forward(x)"}, [&] {
                block.forward(torch::ones({1, NetImpl::kWidth}));
              });
          expect_message({"tokens.weight"}, [&] { model->tokens->weight.sum(); });
          net_loss(model, 0).backward();
        },
        o);
  }
}

TEST(TorchMisuse, SecondBackwardAndStaleGraphs) {
  alone([](Net& model) {
    sherd::ModuleBase& root = sherd::torch::root_of(*model);
    const Tensor loss = net_loss(model, 0);
    loss.backward({}, /*retain_graph=*/true);
    expect_message({"second backward", "root"}, [&] { loss.backward(); });
    sherd::torch::reset_step(*model);
    const Tensor stale = net_loss(model, 0);
    sherd::torch::reset_step(*model);
    expect_message({"from before"}, [&] { stale.backward(); });
    sherd::torch::reset_step(*model);
    net_loss(model, 0).backward();
    expect_message({"gradients are final"}, [&] { net_loss(model, 0).backward(); });
    sherd::torch::reset_step(*model);
    expect_message({"create_graph"}, [&] { net_loss(model, 0).backward({}, true, /*create_graph=*/true); });
    sherd::torch::reset_step(*model);
    (void)root;
  });
}

TEST(TorchMisuse, UsesOutsideOfTheCall) {
  alone([](Net& model) {
    const Tensor loss = net_loss(model, 0);
    Tensor outside;
    {
      const sherd::torch::Unsharded whole(*model);
      EXPECT_FALSE((model->head->weight.sum()).requires_grad());
      const torch::AutoGradMode grad(true);
      outside = model->head->weight.sum();
    }
    expect_message({"head.weight", "outside"}, [&] { outside.backward(); });
  });
}

TEST(TorchMisuse, WhatCannotBeSharded) {
  launch(2, [](RankContext& rank) {
    Net model;
    model->head->to(torch::kDouble);
    model->register_buffer("complex", torch::zeros({2}, torch::kComplexFloat));
    expect_message({"head.weight", "Double", "complex"},
                   [&] { sherd::torch::fully_shard(*model, mesh_of(rank)); });
    Net other;
    for (auto& p : other->parameters()) p.data().fill_(static_cast<float>(rank.world->rank()));
    expect_message(
        {"different weights: rank 1 (", "; the first is '", "broadcast_from_rank_0()", "manual_seed"},
        [&] { sherd::torch::fully_shard(*other, mesh_of(rank)); });
    for (auto& p : other->parameters()) p.data().fill_(0.5f);
    expect_message({"prefetch -1"}, [&] {
      sherd::torch::fully_shard<BlockImpl>(*other, mesh_of(rank), {}, {.prefetch = -1});
    });
    expect_message({"BlockImpl"},
                   [&] { sherd::torch::fully_shard<torch::nn::Conv2dImpl>(*other, mesh_of(rank)); });
    EXPECT_EQ(other->head->weight.sum().item<float>(), 85.0f);  // nothing has happened
    sherd::torch::fully_shard(*other, mesh_of(rank));
    expect_message({"sharded already"}, [&] { sherd::torch::fully_shard(*other, mesh_of(rank)); });
    expect_message({"sharded already", "root"}, [&] { sherd::torch::wrap(*other, mesh_of(rank)); });
    expect_message({"not wrapped"}, [&] { sherd::torch::Unsharded whole(*other->head); });
  });
}

// Routing, sharding and the optimizer in another order than that one.
TEST(TorchMisuse, OptimizersBeforeTheirTime) {
  torch::manual_seed(7);
  Net first;
  launch(2, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    expect_message({"Optimizer", "not sharded", "fully_shard()"},
                   [&] { sherd::torch::Optimizer early(*model); });
    expect_message({"clip_grad_norm", "not sharded"}, [&] { sherd::torch::clip_grad_norm(*model, 1); });
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
    expect_message({"route()", "before fully_shard()"}, [&] { sherd::torch::Optimizer unrouted(*model); });
    expect_message({"sharded already", "before fully_shard()"}, [&] { (void)sherd::torch::route(*model); });
    expect_message({"blocks.1", "root"}, [&] { sherd::torch::Optimizer part(*model->blocks->ptr(1)); });
    expect_message({"model is not sharded"}, [&] { sherd::torch::Optimizer part(*model->head); });
  });
}

// Two optimizers, each with a part of the routing, and one by a routing that sherd::route() made.
TEST(TorchMisuse, OptimizersOfParts) {
  torch::manual_seed(7);
  Net first;
  launch(2, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    const sherd::Routing routing = sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
    sherd::torch::Optimizer blocks(*model, routing.part("^blocks"), {});
    expect_message({"another optimizer", "blocks.0.up.weight"},
                   [&] { sherd::torch::Optimizer again(*model, routing, {}); });
    sherd::torch::Optimizer rest(*model, routing.part("^(tokens|head)"), {});
    net_loss(model, 0).backward();
    blocks.step(1e-2);
    rest.step(1e-2);
    EXPECT_EQ(blocks.steps(), 1);
    EXPECT_EQ(rest.skipped(), 0);
  });
}

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The step is dropped, and the next one has the values of a model to which nothing has happened.
TEST(TorchExceptions, ForwardAndBackward) {
  torch::manual_seed(7);
  Net first;
  Net plain;
  copy_weights(*first, *plain);
  at::set_num_threads(1);
  net_loss(plain, 3).backward();
  const Values want = gradients(*plain);
  for (const Strategy strategy : strategies()) {
    for (const int place : {0, 1, 2, 3}) {
      launch(3, [&](RankContext& rank) {
        Net model = sharded(first, rank, strategy);
        EXPECT_THROW(
            {
              if (place == 0) {  // in the forward of the root, behind two blocks
                sherd::torch::call(
                    *model,
                    [&](const Tensor& x) -> Tensor {
                      Tensor h = model->tokens(x);
                      for (int i = 0; i < 2; ++i)
                        h = model->blocks[static_cast<size_t>(i)]->as<Block>()->forward(h);
                      throw Failure("forward");
                    },
                    batch(0));
              }
              Tensor inside;
              const Tensor y = sherd::torch::call(
                  *model,
                  [&](const Tensor& x) {
                    Tensor h = model->tokens(x);
                    for (int i = 0; i < 3; ++i) {
                      if (i == place) inside = h;
                      h = model->blocks[static_cast<size_t>(i)]->as<Block>()->forward(h);
                    }
                    if (place == 3) inside = h;
                    return model->head(h);
                  },
                  batch(0));
              inside.register_hook([](const Tensor&) { throw Failure("backward"); });
              y.sum().backward();
            },
            std::runtime_error);
        expect_message({"reset_step"}, [&] { net_loss(model, 3).backward(); });
        sherd::torch::reset_step(*model);
        net_loss(model, 3).backward();
        Values same;
        for (auto& [name, g] : want) same[name] = tree_sum({g, g, g}) * (1.0f / 3.0f);
        expect_gradients(*model, same, where(rank, strategy));
      });
    }
  }
}

TEST(TorchMisuse, PartsOfAShardedTree) {
  alone([](Net& model) {
    // Neither noted as a unit nor the root: the root's unit has its parameters.
    expect_message({"root_of", "Linear", "'weight'", "sharded already"},
                   [&] { sherd::torch::root_of(*model->head); });
    const sherd::DeviceMesh mesh = sherd::torch::root_of(*model).wrap()->mesh;
    expect_message({"wrap", "Linear", "sharded already"}, [&] { sherd::torch::wrap(*model->head, mesh); });
    expect_message({"belongs to unit", "wrap()"}, [&] { sherd::torch::fully_shard(*model->head, mesh); });
    net_loss(model, 0).backward();
  });
}

// Usage known from Python's fully_shard(): each block by itself, then the root.
TEST(TorchMisuse, BlocksShardedOneByOne) {
  launch(2, [](RankContext& rank) {
    torch::manual_seed(7);
    Net model;
    for (auto& p : model->parameters()) p.data().fill_(0.25f);
    sherd::torch::fully_shard(*model->blocks[0], mesh_of(rank));
    expect_message({"'blocks.0.", "sharded already", "wrap()", "once, of the root"},
                   [&] { sherd::torch::fully_shard(*model, mesh_of(rank)); });
  });
}

// Every rank would train a model of its own.
TEST(TorchMisuse, BlocksThatAreWrappedWithoutARoot) {
  launch(2, [](RankContext& rank) {
    Net model;
    for (auto& p : model->parameters()) p.data().fill_(0.25f);
    wrap_blocks(model, mesh_of(rank), {});
    expect_message({"Block", "wrap()", "fully_shard()", "root"}, [&] { net_loss(model, 0); });
    {
      const torch::NoGradGuard evaluating;
      net_loss(model, 0);
    }
    sherd::torch::fully_shard(*model, mesh_of(rank));
    net_loss(model, 0).backward();
  });
}

// Why the gradients of a step are not final.
TEST(TorchMisuse, StepsWithoutFinalGradientsSayWhy) {
  alone([](Net& model) {
    sherd::torch::LocalShards shards(*model);
    const auto expect_why = [&](const std::vector<std::string>& parts) {
      expect_message({"final gradients"}, [&] { shards.step([] {}); });
      expect_message(parts, [&] { shards.step([] {}); });
      sherd::torch::reset_step(*model);
    };
    expect_why({"no backward has reached a parameter"});
    {
      const Tensor kept = net_loss(model, 0);
      net_loss(model, 1).backward();
      expect_why({"1 recorded forward(s) of the root", "backward to come", "let go of the loss"});
    }
    model->blocks[1]->as<Block>()->forward(torch::ones({1, NetImpl::kWidth})).sum().backward();
    expect_why({"'blocks.1'", "outside of the root's forward"});
    {
      const sherd::Accumulate accumulate(sherd::torch::root_of(*model));
      net_loss(model, 0).backward();
    }
    expect_why({"Accumulate", "last microbatch after"});
    for (auto& p : model->parameters()) p.set_requires_grad(false);
    sherd::torch::call(
        *model, [&](const Tensor& x) { return model->head(x); },
        torch::ones({1, NetImpl::kWidth}).requires_grad_())
        .sum()
        .backward();
    expect_why({"frozen"});
    for (auto& p : model->parameters()) p.set_requires_grad(true);
    net_loss(model, 0).backward();
    EXPECT_TRUE(shards.step([] {}));
  });
}

TEST(TorchMisuse, ParametersRegisteredLater) {
  alone([](Net& model) {
    model->head->register_parameter("late", torch::ones({2}));
    expect_message({"'head.late'", "after fully_shard()"}, [&] { net_loss(model, 0); });
  });
}

// Same as torch::load() does it.
TEST(TorchMisuse, MemoryThatIsReplaced) {
  alone([](Net& model) {
    Tensor weight = model->head->weight;
    weight.set_data(torch::ones(weight.sizes()));
    expect_message({"'head.weight'", "set_data()", "import_weights()"}, [&] { net_loss(model, 0); });
  });
}

TEST(TorchMisuse, OptimizersOfTheModulesParameters) {
  alone([](Net& model) {
    torch::optim::AdamW optimizer(model->parameters());
    model->zero_grad();  // nothing has come yet
    net_loss(model, 0).backward();
    optimizer.step();
    expect_message({"nothing is trained", "LocalShards", "sherd::zero_grad("}, [&] { model->zero_grad(); });
    sherd::zero_grad(sherd::torch::root_of(*model));  // on purpose
    net_loss(model, 0).backward();
    const sherd::torch::LocalShards shards(*model);
    model->zero_grad();
    net_loss(model, 0).backward();
  });
}

struct OverlappingImpl : torch::nn::Module {
  OverlappingImpl() {
    const Tensor all = torch::ones({4, 4});
    const Tensor turned = all.t();
    register_parameter("whole", all);
    register_parameter("turned", turned);
    register_parameter("rest", torch::ones({4}));
  }
};

// Unusual, but legal.
struct UnusualImpl : torch::nn::Module {
  UnusualImpl() {
    const Tensor table = torch::ones({8, 4});
    register_parameter("scale", torch::ones({4}), /*requires_grad=*/false);  // never had to do with gradients
    register_parameter("whole", table, /*requires_grad=*/false);
    register_parameter("part", table.slice(0, 2, 4), /*requires_grad=*/false);
    register_parameter("weight", torch::ones({4, 4}));
    register_buffer("nothing", torch::empty({0}));
  }
  Tensor forward(const Tensor& x) {
    return x.matmul(named_parameters()["weight"]) * named_parameters()["scale"];
  }
};
SHERD_TORCH_MODULE(Unusual);

TEST(TorchMisuse, IsNotSeenInWhatIsRight) {
  launch(2, [](RankContext& rank) {
    Unusual model;
    sherd::torch::fully_shard(*model, mesh_of(rank));
    model->register_parameter("late", torch::ones({2}), /*requires_grad=*/false);
    const sherd::torch::LocalShards shards(*model);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model(torch::ones({3, 4})).sum().backward();
    }
  });
}

// Modules of a destroyed root can be used in another one, once they have values.
TEST(TorchMisuse, IsNotSeenInASecondLife) {
  launch(2, [](RankContext& rank) {
    sherd::torch::Holder<torch::nn::LinearImpl> linear(4, 4);
    const auto train = [&] {
      torch::nn::Sequential root(linear);
      sherd::torch::wrap(*linear, mesh_of(rank));
      sherd::torch::fully_shard(*root, mesh_of(rank));
      const Tensor x = torch::ones({3, 4});
      sherd::torch::call(
          *root, [&](const Tensor& t) { return linear(t); }, x)
          .sum()
          .backward();
      return sherd::torch::root_of(*root).named_parameters()[0].second.grad_shard().numel();
    };
    for (auto& p : linear->parameters()) p.data().fill_(0.5f);
    const int64_t first = train();
    expect_message({"root is gone"}, [&] { train(); });
    for (auto& p : linear->parameters()) p.set_data(torch::full(p.sizes(), 0.25f));
    EXPECT_EQ(train(), first);
  });
}

TEST(TorchMisuse, MemoryThatIsReplacedBetweenForwardAndBackward) {
  alone([](Net& model) {
    const Tensor loss = net_loss(model, 0);
    Tensor weight = model->head->weight;
    const Tensor own = weight.detach();
    weight.set_data(torch::ones(weight.sizes()));
    expect_message({"'head.weight'", "set_data()"}, [&] { loss.backward(); });
    sherd::torch::reset_step(*model);
    expect_message({"'head.weight'", "set_data()"}, [&] { net_loss(model, 0); });
    weight.set_data(own);
    net_loss(model, 0).backward();
  });
}

TEST(TorchMisuse, ClonesOfWhatIsNotShardedYet) {
  launch(1, [](RankContext& rank) {
    torch::nn::Sequential layers(torch::nn::Linear(4, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
    sherd::torch::wrap(*layers, mesh_of(rank));
    const auto copy = layers->clone();
    EXPECT_EQ(copy->named_parameters().keys(), layers->named_parameters().keys());
  });
}

TEST(TorchMisuse, GradientsOfLocalShardsOutsideOfTheStep) {
  alone([](Net& model) {
    sherd::torch::LocalShards shards(*model);
    Tensor kept;
    net_loss(model, 0).backward();
    EXPECT_THROW(shards.step([&] {
      kept = shards.parameters().at(0).grad();
      kept.sum();
      throw std::runtime_error("the update failed");
    }),
                 std::runtime_error);
    expect_message({"outside of the function"}, [&] { kept.sum(); });
    EXPECT_FALSE(shards.parameters().at(0).grad().defined());
  });
}

TEST(TorchMisuse, ParametersThatShareMemory) {
  launch(1, [](RankContext& rank) {
    OverlappingImpl model;
    expect_message({"'turned' shares memory with 'whole'", "to tie them"},
                   [&] { sherd::torch::fully_shard(model, mesh_of(rank)); });
  });
}

TEST(TorchMisuse, ShardsOfAModelThatIsGone) {
  launch(2, [](RankContext& rank) {
    auto model = std::make_unique<Net>();
    for (auto& p : (*model)->parameters()) p.data().fill_(0.25f);
    sherd::torch::fully_shard<BlockImpl>(**model, mesh_of(rank));
    const Tensor shard = sherd::torch::LocalShards(**model).parameters().at(0);
    shard.sum();
    model.reset();
    expect_message({"LocalShards", "gone"}, [&] { shard.sum(); });
  });
}

// The model goes before the graph, and parameters live longer than their module.
TEST(TorchMisuse, Lifetimes) {
  launch(2, [](RankContext& rank) {
    torch::manual_seed(7);
    auto model = std::make_unique<Net>();
    for (auto& p : (*model)->parameters()) p.data().fill_(0.25f);
    sherd::torch::fully_shard<BlockImpl>(**model, mesh_of(rank));
    const Tensor loss = net_loss(*model, 0);
    const Tensor weight = (*model)->head->weight;
    model.reset();
    expect_message({"gone"}, [&] { loss.backward(); });
    expect_message({"head.weight"}, [&] { weight.sum(); });
  });
}

}  // namespace
}  // namespace torch_test
