// Modules of any signature and kind.
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

// Two heads of which one has no part in the objective, in some of the microbatches; its result exists until
// after backward.
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

// Results that the compiler accepts: all tensors in them are found.
struct Opaque {
  Tensor hidden;
};
struct Described {
  Tensor logits;
};
}  // namespace
}  // namespace torch_test

template <>
struct sherd::torch::Tensors<torch_test::Described> {
  static constexpr bool known = true;
  template <class F>
  static void visit(torch_test::Described& d, F&& f) {
    f(d.logits);
  }
};

namespace torch_test {
namespace {

template <class T>
constexpr bool accepted = sherd::torch::detail::complete<T>();
static_assert(accepted<Tensor> && accepted<void> && accepted<int> && accepted<std::string>);
static_assert(accepted<std::tuple<Tensor, int, std::string, Described>> && accepted<std::pair<Tensor, bool>>);
static_assert(accepted<std::tuple<Tensor, std::tuple<Tensor, Tensor>>> &&
              accepted<std::map<int, std::vector<Tensor>>>);
static_assert(!accepted<Opaque> && !accepted<std::tuple<Tensor, Opaque>> &&
              !accepted<std::pair<Opaque, Tensor>>);
static_assert(!accepted<std::vector<std::pair<Tensor, Opaque>>> &&
              !accepted<std::optional<std::tuple<Tensor, Opaque>>>);
static_assert(!accepted<std::pair<Tensor, std::tuple<int, std::shared_ptr<Opaque>>>> &&
              !accepted<std::pair<Tensor, std::vector<Opaque>>>);

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

TEST(TorchModules, UnshardedShowsTheWholeWeights) {
  torch::manual_seed(7);
  Net first;
  for (const Strategy strategy : strategies()) {
    launch(3, [&](RankContext& rank) {
      Net model = sharded(first, rank, strategy);
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

}  // namespace
}  // namespace torch_test
