// Modules of any signature and kind, what programs do wrong, and exceptions.
#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/unsharded.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using torch::Tensor;

// Two inputs of which one needs a gradient, and a tuple of results of which one is not used.
struct PairImpl : torch::nn::Module {
  PairImpl()
      : a(register_module("a", torch::nn::Linear(4, 4))), b(register_module("b", torch::nn::Linear(4, 4))) {}
  std::tuple<Tensor, std::optional<Tensor>, int64_t> forward(const Tensor& x, Tensor y, bool both = true) {
    return {torch::tanh(a(x)) * b(y), both ? std::optional(a(y)) : std::nullopt, x.size(0)};
  }
  torch::nn::Linear a, b;
};
SHERD_TORCH_MODULE(Pair);
struct PairNetImpl : torch::nn::Module {
  PairNetImpl() : in(register_module("in", torch::nn::Linear(4, 4))) {
    register_module("one", one);
    register_module("two", two);
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = in(x);
    auto [y, unused, rows] = one(h, x);
    auto [z, none, again] = two(y, h, false);
    EXPECT_EQ(rows, x.size(0));
    EXPECT_FALSE(none.has_value());
    return z;
  }
  torch::nn::Linear in;
  Pair one, two;
};
SHERD_TORCH_MODULE(PairNet);

TEST(TorchModules, SeveralInputsAndResults) {
  Comparison<PairNet>{[](PairNet& m, int r) {
                        return m(random({3, 4}, r)).square().mean();
                      },
                      [](PairNet& m, const auto& mesh, const auto& o) {
                        sherd::torch::wrap(*m->one, mesh, o);
                        sherd::torch::wrap(*m->two, mesh, o);
                      }}
      .run();
}

// A weight that two wrapped modules share, and one that the root has besides; a frozen block, a parameter
// that nothing uses, a module that is called several times, one inside of another that is wrapped, too.
// Nothing has more than two uses: what comes together at the argument of a wrapped module is summed there
// first, and sums of three terms show it.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(const Tensor& w) : weight(register_parameter("weight", w)) {}
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight;
};
SHERD_TORCH_MODULE(Scale);
struct ShareImpl : torch::nn::Module {
  explicit ShareImpl(int64_t width) : bias(register_parameter("bias", torch::ones({width}))) {
    inner = register_module("inner", sherd::torch::Holder<torch::nn::LinearImpl>(width, width));
  }
  Tensor forward(const Tensor& x) { return inner->forward(torch::tanh(inner->forward(x))) + bias; }
  Tensor bias;
  std::shared_ptr<sherd::torch::Sharded<torch::nn::LinearImpl>> inner;
};
SHERD_TORCH_MODULE(Share);
struct OddNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 6;
  OddNetImpl() : tokens(register_module("tokens", torch::nn::Embedding(11, kWidth))) {
    register_module("share", share);
    register_module("frozen", frozen);
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    unused = register_parameter("unused", torch::ones({5}));
    head = register_parameter("head", tokens->weight);
    const Tensor tied = torch::full({kWidth}, 0.7f);
    one = register_module("one", Scale(tied));
    two = register_module("two", Scale(one->weight));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = share(one->forward(tokens(x)));
    h = share(h) + frozen(h);
    return torch::linear(two->forward(h), head);
  }
  torch::nn::Embedding tokens;
  Share share{kWidth};
  sherd::torch::Holder<torch::nn::LinearImpl> frozen{kWidth, kWidth};
  Tensor unused, head;
  std::shared_ptr<sherd::torch::Sharded<ScaleImpl>> one, two;
};
SHERD_TORCH_MODULE(OddNet);

Tensor odd_loss(OddNet& m, int r) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(r));
  return m(torch::randint(0, 11, {5}, generator, torch::kLong)).square().mean();
}
void wrap_odd(OddNet& m, const sherd::DeviceMesh& mesh, const FullyShardOptions& o) {
  sherd::torch::wrap(*m->tokens, mesh,
                     o);  // whose only weight is the root's, too: it has no parameters of its own
  sherd::torch::wrap(*m->share->inner, mesh, o);
  sherd::torch::wrap(*m->share, mesh, o);
  sherd::torch::wrap(*m->frozen, mesh, o);
  sherd::torch::wrap(*m->one, mesh, o);
  sherd::torch::wrap(*m->two, mesh, o);
}

TEST(TorchModules, TiedFrozenUnusedAndCalledTwice) {
  Comparison<OddNet>{odd_loss, wrap_odd, /*allow_unused=*/true}.run();
}

// Activations that are dropped and computed again in backward, as a program does it with libtorch: a wrapped
// block around it, or inside of it.
struct Again : torch::autograd::Function<Again> {
  using Run = std::function<Tensor(const Tensor&)>;
  struct Held : torch::CustomClassHolder {
    Run run;
  };
  static Tensor forward(torch::autograd::AutogradContext* context, const Run& run, const Tensor& x) {
    auto held = c10::make_intrusive<Held>();
    held->run = run;
    context->saved_data["run"] = c10::IValue::make_capsule(held);
    context->save_for_backward({x});
    return run(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<Held>(context->saved_data.at("run").toCapsule());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    {
      const torch::AutoGradMode grad(true);
      torch::autograd::backward({held->run(x)}, {gradients[0]});
    }
    return {Tensor(), x.grad()};
  }
};
struct AgainNetImpl : torch::nn::Module {
  AgainNetImpl() : in(register_module("in", torch::nn::Linear(4, 6))) {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(6));
    register_module("blocks", blocks);
    wide = register_module("wide", Block(6));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = in(x);
    for (const auto& block : *blocks) {
      auto* const module = block->as<sherd::torch::Sharded<BlockImpl>>();
      h = Again::apply(Again::Run([module](const Tensor& y) { return module->forward(y); }), h);
    }
    return sherd::torch::call(
        *wide,
        [this](const Tensor& y) {
          return Again::apply(Again::Run([this](const Tensor& z) { return wide->BlockImpl::forward(z); }), y);
        },
        h);
  }
  torch::nn::Linear in;
  torch::nn::ModuleList blocks;
  std::shared_ptr<sherd::torch::Sharded<BlockImpl>> wide;
};
SHERD_TORCH_MODULE(AgainNet);

TEST(TorchModules, Recomputation) {
  Comparison<AgainNet>{[](AgainNet& m, int r) {
                         return m(random({3, 4}, r)).square().mean();
                       },
                       [](AgainNet& m, const auto& mesh, const auto& o) {
                         for (const auto& block : *m->blocks) sherd::torch::wrap(*block, mesh, o);
                         sherd::torch::wrap(*m->wide, mesh, o);
                       }}
      .run();
}

// Two heads of which one has no part in the objective, in some of the microbatches; its result lives through
// backward.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() : trunk(register_module("trunk", torch::nn::Linear(4, 4))) {
    register_module("a", a);
    register_module("b", b);
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const Tensor h = torch::tanh(trunk(x));
    return {a(h), b(h)};
  }
  torch::nn::Linear trunk;
  sherd::torch::Holder<torch::nn::LinearImpl> a{4, 3}, b{4, 2};
};
SHERD_TORCH_MODULE(TwoHeads);

TEST(TorchModules, ResultsThatAreNotUsed) {
  const auto wrap = [](TwoHeads& m, const auto& mesh, const auto& o) {
    sherd::torch::wrap(*m->a, mesh, o);
    sherd::torch::wrap(*m->b, mesh, o);
  };
  Comparison<TwoHeads>{[](TwoHeads& m, int r) {
                         const auto y = m(random({3, 4}, r));
                         const Tensor loss = y[1].square().mean();
                         loss.backward({}, /*retain_graph=*/false);
                         return torch::zeros({}, torch::requires_grad());  // whose own backward does nothing
                       },
                       wrap, /*allow_unused=*/true}
      .run();
  torch::manual_seed(3);
  TwoHeads first, plain;
  copy_weights(*first, *plain);
  const auto loss = [](TwoHeads& m, size_t head) {
    const auto y = m(random({3, 4}, 9));
    return y[head].square().mean();
  };
  at::set_num_threads(1);
  for (const size_t head : {size_t{0}, size_t{1}, size_t{1}}) loss(plain, head).backward();
  const Values want = gradients(*plain);
  for (const Strategy strategy : strategies()) {
    launch(1, [&](RankContext& rank) {
      TwoHeads model;
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      wrap(model, mesh_of(rank), o);
      sherd::torch::fully_shard(*model, mesh_of(rank), o);
      {
        const sherd::Accumulate accumulate(sherd::torch::root_of(*model));
        loss(model, 0).backward();
        loss(model, 1).backward();
      }
      loss(model, 1).backward();
      expect_gradients(*model, want, where(rank, strategy));
    });
  }
}

TEST(TorchModules, UnusedParametersAreNamed) {
  launch(2, [](RankContext& rank) {
    torch::manual_seed(1);
    OddNet model;
    for (auto& p : model->parameters()) p.data().fill_(0.1f);
    wrap_odd(model, mesh_of(rank), {});
    sherd::torch::fully_shard(*model, mesh_of(rank));
    const std::string message = message_of([&] { odd_loss(model, 0).backward(); });
    EXPECT_NE(message.find("unused"), std::string::npos) << message;
  });
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    layers = register_module(
        "layers",
        torch::nn::Sequential(
            sherd::torch::Sharded<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 5, 3).padding(1)),
            torch::nn::BatchNorm2d(5), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
            sherd::torch::Sharded<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(5, 4, 3))));
    last = torch::nn::AnyModule(sherd::torch::Sharded<torch::nn::LinearImpl>(4, 2));
    register_module("last", last.ptr());
  }
  Tensor forward(const Tensor& x) { return last.forward(layers->forward(x).mean({2, 3})); }
  torch::nn::Sequential layers = nullptr;
  torch::nn::AnyModule last;
};
SHERD_TORCH_MODULE(ConvNet);

TEST(TorchModules, ConvolutionsBatchNormSequentialAndAnyModule) {
  Comparison<ConvNet>{[](ConvNet& m, int r) {
                        return m(random({2, 3, 6, 6}, r)).square().mean();
                      },
                      [](ConvNet& m, const auto& mesh, const auto& o) {
                        for (const size_t i : {size_t{0}, size_t{3}})
                          sherd::torch::wrap(*m->layers->ptr(i), mesh, o);
                        sherd::torch::wrap(*m->last.ptr(), mesh, o);
                      }}
      .run();
}

using Lstm = sherd::torch::Holder<torch::nn::LSTMImpl>;
struct LstmNetImpl : torch::nn::Module {
  LstmNetImpl() : head(register_module("head", torch::nn::Linear(5, 3))) {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) {
    auto [y, state] = first(x);
    auto [z, last] = second(y, std::optional(state));
    return head(z) + std::get<1>(last).sum();
  }
  torch::nn::Linear head;
  Lstm first{torch::nn::LSTMOptions(4, 5)}, second{torch::nn::LSTMOptions(5, 5)};
};
SHERD_TORCH_MODULE(LstmNet);

TEST(TorchModules, Lstm) {
  Comparison<LstmNet>{[](LstmNet& m, int r) {
                        return m(random({3, 2, 4}, r)).square().mean();
                      },
                      [](LstmNet& m, const auto& mesh, const auto& o) {
                        sherd::torch::wrap(*m->first, mesh, o);
                        sherd::torch::wrap(*m->second, mesh, o);
                      }}
      .run();
}

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

TEST(TorchMisuse, MovingAndCopyingAreRefused) {
  alone([](Net& model) {
    expect_message({"Module::to()", "fully_shard"}, [&] { model->blocks->ptr(1)->to(torch::kFloat); });
    expect_message({"sherd", "before fully_shard"}, [&] { model->to(torch::kDouble); });
    std::ostringstream file;
    expect_message({"sherd"}, [&] { torch::save(model.ptr(), file); });
    expect_message({"clone"}, [&] { model->blocks->ptr(1)->clone(); });
    net_loss(model, 0).backward();  // and it still works
  });
}

TEST(TorchMisuse, CallsPastTheHolder) {
  for (const Strategy strategy : strategies()) {
    FullyShardOptions o;
    o.strategy = strategy;
    alone(
        [](Net& model) {
          BlockImpl& block = *model->blocks[1]->as<BlockImpl>();
          expect_message({"blocks.1.norm.weight", "blocks.1"}, [&] {
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
    model->register_parameter("nowhere", torch::empty({2}, torch::kMeta));
    expect_message({"head.weight", "Double", "nowhere", "meta"},
                   [&] { sherd::torch::fully_shard(*model, mesh_of(rank)); });
    Net other;
    for (auto& p : other->parameters()) p.data().fill_(static_cast<float>(rank.world->rank()));
    expect_message({"different weights", "manual_seed"},
                   [&] { sherd::torch::fully_shard(*other, mesh_of(rank)); });
    for (auto& p : other->parameters()) p.data().fill_(0.5f);
    FullyShardOptions wrong;
    wrong.prefetch = -1;
    expect_message({"prefetch -1"},
                   [&] { sherd::torch::fully_shard<BlockImpl>(*other, mesh_of(rank), wrong); });
    expect_message({"BlockImpl"},
                   [&] { sherd::torch::fully_shard<torch::nn::Conv2dImpl>(*other, mesh_of(rank)); });
    EXPECT_EQ(other->head->weight.sum().item<float>(), 85.0f);  // nothing has happened
    sherd::torch::fully_shard(*other, mesh_of(rank));
    expect_message({"sharded already"}, [&] { sherd::torch::fully_shard(*other, mesh_of(rank)); });
    expect_message({"sharded already", "root"}, [&] { sherd::torch::wrap(*other, mesh_of(rank)); });
    expect_message({"not wrapped"}, [&] { sherd::torch::Unsharded whole(*other->head); });
  });
}

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The step is given up, and the next one has the values of a model to which nothing has happened.
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
        Net model;
        copy_weights(*first, *model);
        FullyShardOptions o;
        o.strategy = strategy;
        sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
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

TEST(TorchModules, UnshardedShowsTheWholeWeights) {
  torch::manual_seed(7);
  Net first;
  for (const Strategy strategy : strategies()) {
    launch(3, [&](RankContext& rank) {
      Net model;
      copy_weights(*first, *model);
      FullyShardOptions o;
      o.strategy = strategy;
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
      const sherd::torch::Unsharded whole(*model);
      const auto want = first->named_parameters();
      for (auto& p : model->named_parameters())
        EXPECT_TRUE(torch::equal(p.value(), want[p.key()])) << p.key();
      at::set_num_threads(1);
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal(model(batch(1)), first(batch(1))));
    });
  }
}

// The model goes before the graph, and parameters live longer than their module.
TEST(TorchModules, Lifetimes) {
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
