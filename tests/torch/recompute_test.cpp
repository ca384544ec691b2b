// Calls that are dropped and run again in backward.
#include <ATen/autocast_mode.h>

#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/recompute.h>

#include "torch/memory.h"
#include "torch/net.h"

namespace torch_test {
namespace {

using sherd::torch::recompute;
using torch::Tensor;

/// Parts that run twice.
enum class Recomputed {
  nothing,
  around_blocks,
  inside_blocks,
  around_two,
  nested,
  shared_block,
  all_in_call
};

struct DropBlockImpl : torch::nn::Module {
  explicit DropBlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  Tensor body(const Tensor& x) {
    return torch::dropout(down(torch::dropout(torch::gelu(up(x)), 0.2, true)), 0.3, true);
  }
  Tensor forward(const Tensor& x) {
    if (!inside) return x + body(x);
    return x + recompute([this](const Tensor& y) { return body(y); }, x);
  }
  torch::nn::Linear up, down;
  bool inside = false;
};
SHERD_TORCH_MODULE(DropBlock);

struct DropNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 6;
  DropNetImpl() {
    register_module("tokens", tokens);
    for (int i = 0; i < 4; ++i) blocks->push_back(DropBlock(kWidth));
    register_module("blocks", blocks);
    register_module("head", head);
  }
  auto block(size_t i) { return blocks[i]->as<DropBlock>(); }
  Tensor two(size_t i, const Tensor& x) { return block(i + 1)->forward(block(i)->forward(x)); }
  Tensor forward(const Tensor& x) {
    if (again == Recomputed::all_in_call) return recompute([this](const Tensor& t) { return all(t); }, x);
    return all(x);
  }
  Tensor all(const Tensor& x) {
    Tensor h = tokens(x);
    for (size_t i = 0; i < 4; ++i) {
      const auto one = [this, i](const Tensor& y) { return block(i)->forward(y); };
      const auto pair = [this, i](const Tensor& y) { return two(i, y); };
      switch (again) {
        case Recomputed::around_blocks:
          h = recompute(one, h);
          break;
        case Recomputed::around_two:
          h = recompute(pair, h);
          ++i;
          break;
        case Recomputed::nested:
          h = recompute(
              [this, i](const Tensor& y) {
                const Tensor z = recompute([this, i](const Tensor& a) { return block(i)->forward(a); }, y);
                return recompute([this, i](const Tensor& a) { return block(i + 1)->forward(a); }, z);
              },
              h);
          ++i;
          break;
        default:
          h = one(h);
      }
      if (three_times) {
        for (int k = 0; k < 2; ++k) h = again == Recomputed::shared_block ? recompute(one, h) : one(h);
      }
    }
    return head(h);
  }
  torch::nn::Embedding tokens{11, kWidth};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{kWidth, 3};
  Recomputed again = Recomputed::nothing;
  bool three_times = false;
};
SHERD_TORCH_MODULE(DropNet);

Tensor tokens_of(int number) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + number));
  return torch::randint(0, 11, {4, 3}, generator, torch::kLong);
}

Tensor drop_loss(DropNet& m, int r) {
  const sherd::torch::ThreadGenerator random(100 + static_cast<uint64_t>(r));
  return m(tokens_of(r)).square().mean();
}

void set_again(DropNet& m, Recomputed again) {
  m->again = again;
  for (size_t i = 0; i < 4; ++i) m->block(i)->inside = again == Recomputed::inside_blocks;
}

// The plain model recomputes nothing, and the sharded one does.
TEST(TorchRecompute, SameBitsUnderAllStrategies) {
  for (const Recomputed again : {Recomputed::around_blocks, Recomputed::inside_blocks, Recomputed::around_two,
                                 Recomputed::nested, Recomputed::all_in_call}) {
    Comparison<DropNet>{drop_loss,
                        [again](DropNet& m, const auto& mesh, const auto& o) {
                          set_again(m, again);
                          for (const auto& block : *m->blocks) sherd::torch::wrap(*block, mesh, o);
                        }}
        .run();
    ASSERT_FALSE(HasFailure()) << "recomputing " << static_cast<int>(again);
  }
}

// A unit that several scopes and plain calls have: its gradients are reduced once, with the last.
TEST(TorchRecompute, OneUnitInSeveralScopes) {
  Comparison<DropNet>{[](DropNet& m, int r) {
                        m->three_times = true;
                        return drop_loss(m, r);
                      },
                      [](DropNet& m, const auto& mesh, const auto& o) {
                        set_again(m, Recomputed::shared_block);
                        for (const auto& block : *m->blocks) sherd::torch::wrap(*block, mesh, o);
                      }}
      .run();
}

DropNet sharded_drop(const DropNet& first, const RankContext& rank, Strategy strategy, Recomputed again) {
  DropNet model;
  copy_weights(*first, *model);
  FullyShardOptions o;
  o.strategy = strategy;
  sherd::torch::fully_shard<DropBlockImpl>(*model, mesh_of(rank), o);
  set_again(model, again);
  return model;
}

Values mean_of_drop(const DropNet& first, int ranks, const std::function<void(DropNet&, int)>& pass) {
  at::set_num_threads(1);  // as in every test of bits: a test may be the first of its process
  std::vector<Values> each;
  for (int r = 0; r < ranks; ++r) {
    DropNet plain;
    copy_weights(*first, *plain);
    pass(plain, r);
    each.push_back(gradients(*plain));
  }
  return mean(each);
}

// The root's own call in a scope, as one of several objectives, whose graphs are there together.
TEST(TorchRecompute, AroundTheRoot) {
  torch::manual_seed(7);
  DropNet first;
  const auto loss = [](DropNet& m, int number, bool again) {
    const sherd::torch::ThreadGenerator random(100 + static_cast<uint64_t>(number));
    const auto run = [&m](const Tensor& x) { return m(x); };
    return (again ? recompute(run, tokens_of(number)) : run(tokens_of(number))).square().mean();
  };
  for (const int ranks : {1, 3}) {
    const Values one = mean_of_drop(first, ranks, [&](DropNet& m, int r) { loss(m, r, false).backward(); });
    const Values two = mean_of_drop(first, ranks, [&](DropNet& m, int r) {
      const Tensor a = loss(m, 2 * r, false), b = loss(m, 2 * r + 1, false);
      b.backward();
      a.backward();
    });
    for (const Strategy strategy : strategies()) {
      launch(ranks, [&](RankContext& rank) {
        for (const Recomputed again : {Recomputed::nothing, Recomputed::around_blocks}) {
          DropNet model = sharded_drop(first, rank, strategy, again);
          const int r = rank.world->rank();
          loss(model, 5, true);  // a graph that is dropped owes nothing
          loss(model, r, true).backward();
          expect_gradients(*model, one, where(rank, strategy));
          sherd::torch::reset_step(*model);
          const Tensor a = loss(model, 2 * r, true), b = loss(model, 2 * r + 1, true);
          b.backward();
          a.backward();
          // Backwards of their own are summed over ranks one by one where gradients are sharded.
          if (ranks == 1 || strategy == Strategy::no_shard || strategy == Strategy::optim)
            expect_gradients(*model, two, where(rank, strategy));
        }
      });
    }
  }
}

TEST(TorchRecompute, ScopesOfSeveralObjectives) {
  torch::manual_seed(7);
  DropNet first;
  const Values want = mean_of_drop(first, 1, [](DropNet& m, int) {
    const Tensor a = drop_loss(m, 0), b = drop_loss(m, 1);
    a.backward();
    b.backward();
  });
  for (const Strategy strategy : strategies()) {
    launch(1, [&](RankContext& rank) {
      for (const Recomputed again : {Recomputed::around_blocks, Recomputed::nested}) {
        DropNet model = sharded_drop(first, rank, strategy, again);
        const Tensor a = drop_loss(model, 0), b = drop_loss(model, 1);
        a.backward();
        b.backward();
        expect_gradients(*model, want, where(rank, strategy));
        sherd::torch::reset_step(*model);
        {
          const sherd::Accumulate accumulate(sherd::torch::root_of(*model));
          drop_loss(model, 0).backward();
        }
        drop_loss(model, 1).backward();
        expect_gradients(*model, want, where(rank, strategy) + ", microbatches");
      }
    });
  }
}

TEST(TorchRecompute, KeepsLess) {
  const auto held = [](const std::function<Tensor()>& forward) {
    const MemoryMeter meter;
    const Tensor result = forward();
    return meter.held();
  };
  torch::manual_seed(7);
  DropNet first;
  const Tensor x = torch::zeros({512, 3}, torch::kLong);
  int64_t plain = 0;
  launch(1, [&](RankContext& rank) {
    const std::pair<Recomputed, int64_t> least[] = {{Recomputed::nothing, 0},
                                                    {Recomputed::inside_blocks, 3},
                                                    {Recomputed::around_blocks, 6},
                                                    {Recomputed::around_two, 8}};
    for (const auto& [again, times_less] : least) {
      DropNet model = sharded_drop(first, rank, Strategy::optim_grads_params, again);
      const int64_t bytes = held([&] { return model(x); });
      if (again == Recomputed::nothing) plain = bytes;
      EXPECT_LE(times_less * bytes, plain) << static_cast<int>(again);
    }
  });
}

/// Gradients of two weights and of x, of f in a scope and as it is. f(x, w1, w2) is run under `forward`.
void expect_same_without_modules(const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& f,
                                 const std::function<Tensor(const std::function<Tensor()>&)>& forward) {
  std::vector<std::vector<Tensor>> all;
  for (const bool again : {false, true}) {
    const Tensor x = random({8, 16}, 1).requires_grad_(), w1 = random({16, 16}, 2).requires_grad_(),
                 w2 = random({16, 4}, 3).requires_grad_();
    torch::manual_seed(9);
    const auto body = [&](const Tensor& a, const Tensor& b) { return f(a, w1, b); };
    const Tensor y = forward([&] { return again ? recompute(body, x, w2) : body(x, w2); });
    const Tensor later = torch::rand({3});
    y.square().sum().backward();
    all.push_back({y.detach(), x.grad(), w1.grad(), w2.grad(), later, torch::rand({3})});
  }
  for (size_t i = 0; i < all[0].size(); ++i) EXPECT_TRUE(torch::equal(all[0][i], all[1][i])) << i;
}

TEST(TorchRecompute, DefaultGeneratorAndAutocast) {
  at::set_num_threads(1);
  const auto f = [](const Tensor& x, const Tensor& w1, const Tensor& w2) {
    return torch::matmul(torch::dropout(torch::matmul(x, w1).relu(), 0.4, true) + torch::randn({16}), w2);
  };
  expect_same_without_modules(f, [](const std::function<Tensor()>& run) { return run(); });
  expect_same_without_modules(f, [](const std::function<Tensor()>& run) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor y = run();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y.to(torch::kFloat);
  });
}

TEST(TorchRecompute, ArgumentsAndResultsOfAnyKind) {
  const Tensor x = torch::ones({3}, torch::requires_grad()),
               y = torch::full({3}, 2.0, torch::requires_grad());
  const auto f = [](const std::vector<Tensor>& all, const std::optional<Tensor>& none, int64_t factor) {
    EXPECT_FALSE(none.has_value());
    return std::tuple<Tensor, Tensor, int64_t>(all[0] * all[1] * static_cast<double>(factor), all[0].argmax(),
                                               factor);
  };
  auto [product, place, factor] =
      recompute(f, std::vector<Tensor>{x, y}, std::optional<Tensor>(), int64_t{5});
  EXPECT_EQ(factor, 5);
  EXPECT_FALSE(place.requires_grad());
  product.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 10.0)));
  EXPECT_TRUE(torch::equal(y.grad(), torch::full({3}, 5.0)));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(recompute([](const Tensor& t) { return t * 2; }, x).requires_grad());
}

TEST(TorchRecompute, Misuse) {
  const Tensor x = torch::ones({3}, torch::requires_grad());
  const auto expect = [](const std::string& part, const std::function<void()>& f) {
    const std::string message = message_of(f);
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  };
  expect("wrote in place", [&] { recompute([](Tensor t) { return t.mul_(2) + 1; }, x * 1); });
  expect("create_graph", [&] {
    recompute([](const Tensor& t) { return t * t; }, x).sum().backward({}, true, /*create_graph=*/true);
  });
  expect("returned 1 tensors, and 2", [&] {
    int runs = 0;
    const auto grows = [&runs](const Tensor& t) {
      return std::vector<Tensor>(static_cast<size_t>(++runs), t * 2);
    };
    recompute(grows, x)[0].sum().backward();
  });
  // An exception in the second run ends the backward, and the model's step.
  torch::manual_seed(7);
  DropNet first;
  const Values want = mean_of_drop(first, 1, [](DropNet& m, int) { drop_loss(m, 0).backward(); });
  launch(1, [&](RankContext& rank) {
    DropNet model = sharded_drop(first, rank, Strategy::optim_grads_params, Recomputed::nothing);
    int runs = 0;
    const Tensor y = sherd::torch::call(
        *model,
        [&](const Tensor& t) {
          return recompute(
              [&](const Tensor& h) {
                const Tensor result = model->two(0, h);
                if (++runs == 2) throw std::runtime_error("in the second run");
                return result;
              },
              model->tokens(t));
        },
        tokens_of(0));
    expect("in the second run", [&] { y.sum().backward(); });
    expect("reset_step", [&] { drop_loss(model, 0).backward(); });
    sherd::torch::reset_step(*model);
    set_again(model, Recomputed::around_blocks);
    drop_loss(model, 0).backward();
    expect_gradients(*model, want, where(rank, Strategy::optim_grads_params));
  });
}

}  // namespace
}  // namespace torch_test
