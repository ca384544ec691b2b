// Tensors that a recomputed function writes in place change once, and the second run computes what the first did.
#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/policies.h>
#include <sherd/torch/recompute.h>
#include <sherd/torch/sync_batch_norm.h>

#include "torch/memory.h"
#include "torch/support.h"

namespace torch_test {
namespace {

namespace nn = torch::nn;
using sherd::torch::recompute;
using torch::Tensor;

/// A weight divided by its largest singular value, which a step of power iteration follows, as spectral normalization has it.
struct SpectralImpl : nn::Module {
  SpectralImpl() {
    weight = register_parameter("weight", random({4, 4}, 30));
    u = register_buffer("u", random({4}, 31));
  }
  Tensor forward(const Tensor& x) {
    Tensor v;
    {
      const torch::NoGradGuard no_grad;
      v = torch::nn::functional::normalize(weight.t().mv(u),
                                           torch::nn::functional::NormalizeFuncOptions().dim(0));
      u.copy_(torch::nn::functional::normalize(weight.mv(v),
                                               torch::nn::functional::NormalizeFuncOptions().dim(0)));
    }
    const Tensor w = weight * 1;  // one use of the weight: sums of more are ordered by scopes
    return x.matmul(w / u.clone().dot(w.mv(v)));
  }
  Tensor weight, u;
};
TORCH_MODULE(Spectral);

/// Writes of other kinds: by a view, to a part, by an operation on lists, by an `out` argument, into an index. The result
/// depends on what the buffers held before and hold after.
struct WriterImpl : nn::Module {
  WriterImpl() {
    queue = register_buffer("queue", torch::zeros({6, 4}));
    mean = register_buffer("mean", torch::zeros({4}));
    least = register_buffer("least", torch::ones({4}));
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
  }
  Tensor forward(const Tensor& x) {
    const Tensor old = mean.clone();
    const Tensor values = x.detach().reshape({-1, 4}).mean(0);
    {
      const torch::NoGradGuard no_grad;
      queue.slice(0, 1, 6).copy_(queue.slice(0, 0, 5).clone());
      queue[0].copy_(values);
      at::_foreach_lerp_({mean, least.view({2, 2}).view(-1)}, {values, values.abs()}, 0.25);
      torch::minimum_out(least, least, values);
      least.index_put_({torch::tensor({1})}, values[1]);
      steps += 1;
    }
    const double all = steps.item<double>();
    return x * (1 + mean + old * least) + queue.sum(0) / all;
  }
  Tensor queue, mean, least, steps;
};
TORCH_MODULE(Writer);

struct Made {
  std::shared_ptr<nn::Module> module;
  std::function<Tensor(const Tensor&)> forward;
};

template <class Holder>
Made made(Holder holder) {
  return {holder.ptr(), [module = holder.get()](const Tensor& x) { return module->forward(x); }};
}

struct KindOfModule {
  std::string name;
  std::function<Made()> make;
  std::vector<int64_t> input;
};

std::vector<KindOfModule> kinds_of_modules() {
  const auto no_momentum = nn::BatchNormOptions(4).momentum(std::nullopt);
  const auto tracked = nn::InstanceNormOptions(4).track_running_stats(true).affine(true);
  return {
      {"BatchNorm1d", [] { return made(nn::BatchNorm1d(4)); }, {6, 4}},
      {"BatchNorm1d, sequence", [] { return made(nn::BatchNorm1d(4)); }, {3, 4, 5}},
      {"BatchNorm2d", [] { return made(nn::BatchNorm2d(4)); }, {2, 4, 3, 3}},
      {"BatchNorm3d", [] { return made(nn::BatchNorm3d(4)); }, {2, 4, 2, 3, 3}},
      {"BatchNorm2d, no momentum", [=] { return made(nn::BatchNorm2d(no_momentum)); }, {2, 4, 3, 3}},
      {"InstanceNorm1d", [=] { return made(nn::InstanceNorm1d(tracked)); }, {3, 4, 5}},
      {"InstanceNorm2d", [=] { return made(nn::InstanceNorm2d(tracked)); }, {2, 4, 3, 3}},
      {"InstanceNorm3d", [=] { return made(nn::InstanceNorm3d(tracked)); }, {2, 4, 2, 3, 3}},
      {"SyncBatchNorm", [] { return made(sherd::torch::SyncBatchNorm(4)); }, {3, 4, 5}},
      {"SyncBatchNorm, no momentum", [=] { return made(sherd::torch::SyncBatchNorm(no_momentum)); }, {6, 4}},
      {"spectral", [] { return made(Spectral()); }, {5, 4}},
      {"writer", [] { return made(Writer()); }, {5, 4}},
  };
}

/// Calls of a module f in a scope.
using Around = std::function<Tensor(const std::function<Tensor(const Tensor&)>& f, const Tensor& x)>;

Tensor plainly(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) { return f(f(x).sin()); }
Tensor in_a_scope(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  return recompute([f](const Tensor& t) { return plainly(f, t); }, x);
}
Tensor in_two_scopes(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  return recompute(f, recompute(f, x).sin());
}
Tensor in_nested_scopes(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  return recompute([f](const Tensor& t) { return in_two_scopes(f, t); }, x);
}
Tensor in_three_levels(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  return recompute(
      [f](const Tensor& t) { return recompute([f](const Tensor& s) { return in_two_scopes(f, s); }, t); }, x);
}

/// Outputs, gradients and buffers, in the order in which they come about.
std::vector<Tensor> history(const KindOfModule& kind, const Around& around) {
  const Made m = kind.make();
  std::vector<Tensor> all;
  const auto note_buffers = [&] {
    for (const Tensor& b : m.module->buffers()) all.push_back(b.clone());
  };
  int seed = 0;
  const auto forward = [&](Tensor& x) {
    x = random(kind.input, seed++).requires_grad_();
    const Tensor y = around(m.forward, x);
    all.push_back(y.detach().clone());
    note_buffers();
    return y;
  };
  const auto backward = [&](const Tensor& y, const Tensor& x) {
    m.module->zero_grad();  // scopes add to them one by one
    y.square().sum().backward();
    all.push_back(x.grad().clone());
    for (const Tensor& p : m.module->parameters()) all.push_back(p.grad().clone());
    note_buffers();
  };
  Tensor a, b;
  for (int step = 0; step < 2; ++step) {
    const Tensor y = forward(a);
    backward(y, a);
  }
  // The second run of the older forward comes last, after an evaluation.
  const Tensor first = forward(a), second = forward(b);
  {
    const torch::NoGradGuard no_grad;
    m.module->eval();
    all.push_back(m.forward(random(kind.input, 99)));
    m.module->train();
  }
  backward(second, b);
  backward(first, a);
  // A graph that is kept for a second backward.
  const Tensor y = forward(a);
  y.sum().backward({}, /*retain_graph=*/true);
  backward(y, a);
  m.module->eval();
  backward(forward(a), a);
  return all;
}

TEST(TorchRecomputeBuffers, ChangeOnceWithTheSameBits) {
  at::set_num_threads(1);
  const std::pair<const char*, Around> scopes[] = {{"a scope", in_a_scope},
                                                   {"two scopes", in_two_scopes},
                                                   {"nested scopes", in_nested_scopes},
                                                   {"three levels", in_three_levels}};
  for (const KindOfModule& kind : kinds_of_modules()) {
    const std::vector<Tensor> want = history(kind, plainly);
    for (const auto& [name, around] : scopes) {
      const std::vector<Tensor> have = history(kind, around);
      ASSERT_EQ(want.size(), have.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(torch::equal(want[i], have[i])) << kind.name << " in " << name << ", value " << i;
    }
  }
}

// The norms of its rows are limited in forward.
TEST(TorchRecomputeBuffers, RowsOfAnEmbeddingAreLimitedOnce) {
  std::vector<std::vector<Tensor>> all;
  for (const bool again : {false, true}) {
    nn::Embedding rows(nn::EmbeddingOptions(7, 5).max_norm(0.5)._weight(random({7, 5}, 1)));
    const auto f = [&rows](const Tensor& x) { return rows(x).square(); };
    const Tensor x = torch::tensor({1, 4, 4, 6});
    for (int step = 0; step < 3; ++step) (again ? recompute(f, x) : f(x)).sum().backward();
    all.push_back({rows->weight.detach().clone(), rows->weight.grad()});
  }
  for (size_t i = 0; i < all[0].size(); ++i) EXPECT_TRUE(torch::equal(all[0][i], all[1][i])) << i;
}

// Writes to a tensor that the function made are not saved, nor is memory beside a written part.
TEST(TorchRecomputeBuffers, KeepsWrittenPartsOnly) {
  constexpr int64_t kRow = 1 << 16;
  const Tensor record = torch::zeros({8, kRow}), x = random({kRow}, 1).requires_grad_();
  const MemoryMeter meter;
  const Tensor y = recompute(
      [record](const Tensor& t) {
        Tensor made = t * 2;
        made.mul_(3).view({2, -1})[1].add_(1);
        record[3].copy_(made.detach());
        record[3].mul_(2);
        return made * t;
      },
      x);
  EXPECT_LE(meter.held(), 2 * kRow * 4 + 4096);  // the result, and a row of the record
  y.sum().backward();
  EXPECT_TRUE(torch::equal(record.sum(1) != 0, torch::arange(8) == 3));
}

// Same as without recompute().
TEST(TorchRecomputeBuffers, AWriteAfterAUseThatBackwardNeedsIsAnError) {
  const Tensor buffer = torch::ones({3}), x = torch::ones({3}, torch::requires_grad());
  const auto f = [buffer](const Tensor& t) {
    const Tensor y = t * buffer;
    buffer.add_(1);
    return y;
  };
  for (const bool again : {false, true})
    EXPECT_NE(message_of([&] {
                (again ? recompute(f, x) : f(x)).sum().backward();
              }).find("modified by an inplace operation"),
              std::string::npos)
        << again;
}

enum class Scopes { none, around, inside, policy };

struct NormBlockImpl : nn::Module {
  NormBlockImpl()
      : linear(register_module("linear", nn::Linear(6, 6))),
        batch(register_module("batch", nn::BatchNorm1d(6))),
        sync(register_module("sync",
                             sherd::torch::SyncBatchNorm(nn::BatchNormOptions(6).momentum(std::nullopt)))) {}
  Tensor body(const Tensor& x) { return x + sync(torch::dropout(batch(linear(x)).relu(), 0.2, true)); }
  Tensor forward(const Tensor& x) {
    return inside ? recompute([this](const Tensor& t) { return body(t); }, x) : body(x);
  }
  nn::Linear linear;
  nn::BatchNorm1d batch;
  sherd::torch::SyncBatchNorm sync;
  bool inside = false;
};
SHERD_TORCH_MODULE(NormBlock);

struct NormNetImpl : nn::Module {
  NormNetImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(NormBlock());
    register_module("blocks", blocks);
  }
  auto block(size_t i) { return blocks[i]->as<NormBlock>(); }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < blocks->size(); ++i) {
      const auto one = [this, i](const Tensor& t) { return block(i)->forward(t); };
      x = scopes == Scopes::around ? recompute(one, x) : one(x);
    }
    return x;
  }
  void set(Scopes to) {
    scopes = to;
    for (size_t i = 0; i < blocks->size(); ++i) block(i)->inside = to == Scopes::inside;
    if (to == Scopes::policy) sherd::torch::recompute_calls(*this, sherd::torch::of_type<NormBlockImpl>());
  }
  nn::ModuleList blocks;
  Scopes scopes = Scopes::none;
};
SHERD_TORCH_MODULE(NormNet);

Tensor norm_loss(NormNet& m, int number) {
  const sherd::torch::ThreadGenerator random_numbers(100 + static_cast<uint64_t>(number));
  return m(random({5, 6}, number)).square().mean();
}

// The plain model recomputes nothing.
TEST(TorchRecomputeBuffers, OfUnitsAreThoseOfPlainLibtorch) {
  for (const Scopes scopes : {Scopes::around, Scopes::inside, Scopes::policy}) {
    Comparison<NormNet>{norm_loss,
                        [scopes](NormNet& m, const auto& mesh, const auto& o) {
                          for (const auto& block : *m->blocks) sherd::torch::wrap(*block, mesh, o);
                          m->set(scopes);
                        }}
        .run();
    ASSERT_FALSE(HasFailure()) << "scopes " << static_cast<int>(scopes);
  }
}

// With statistics of all ranks, over microbatches, and two graphs that are there together.
TEST(TorchRecomputeBuffers, OfRanksThatShareBatchesAreTheSameWithAndWithout) {
  torch::manual_seed(7);
  NormNet first;
  for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads_params}) {
    launch(3, [&](RankContext& rank) {
      std::vector<std::vector<float>> want;
      for (const Scopes scopes : {Scopes::none, Scopes::around, Scopes::inside, Scopes::policy}) {
        NormNet model;
        copy_weights(*first, *model);
        sherd::torch::fully_shard<NormBlockImpl>(*model, mesh_of(rank), {.strategy = strategy});
        sherd::torch::share_batches(*model, mesh_of(rank));
        model->set(scopes);
        const int r = rank.world->rank();
        {
          const sherd::Accumulate accumulate(sherd::torch::root_of(*model), sherd::GradientSync::last);
          norm_loss(model, r).backward();
          const Tensor a = norm_loss(model, 3 + r), b = norm_loss(model, 6 + r);
          b.backward();
          a.backward();
        }
        norm_loss(model, 9 + r).backward();
        std::vector<std::vector<float>> have;
        for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
          have.push_back(sherd::ops::to_floats(rank.device->compute(), p.grad_shard()));
        for (const Tensor& b : model->buffers()) {
          const Tensor flat = b.to(torch::kFloat).reshape({-1});
          have.emplace_back(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
        }
        if (scopes == Scopes::none) want = have;
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_TRUE(same_bits(want[i], have[i]))
              << i << ", scopes " << static_cast<int>(scopes) << ", " << where(rank, strategy);
      }
    });
  }
}

}  // namespace
}  // namespace torch_test
