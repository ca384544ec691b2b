// Changes between steps: weights that programs write, and requires_grad that they switch.
#include <gmock/gmock.h>
#include <sherd/fsdp/accumulate.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>
#include <sherd/torch/unsharded.h>
#include <sherd/torch/update_weights.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

/// Strategies over all ranks, and HSDP.
struct Place {
  std::string name;
  int ranks;
  std::vector<sherd::MeshDim> dims;
  FullyShardOptions options;
  sherd::RootOptions root = {};
};
std::vector<Place> places() {
  std::vector<Place> all;
  for (const Strategy s : strategies()) {
    all.push_back({sherd::name_of(s), 2, {{"shard", 2}}, {}});
    all.back().options.strategy = s;
  }
  all.push_back({"HSDP", 4, {{"replicate", 2}, {"shard", 2}}, {}});
  return all;
}
void on(const Place& place, const Net& first, const std::function<void(Net&, const RankContext&)>& body) {
  launch(place.ranks, [&](RankContext& rank) {
    SCOPED_TRACE(fmt::format("{}, rank {}", place.name, rank.world->rank()));
    Net model;
    copy_weights(*first, *model);
    sherd::torch::fully_shard<BlockImpl>(*model, sherd::DeviceMesh(rank.world, place.dims), place.options,
                                         place.root);
    body(model, rank);
  });
}

void halve(const Tensor& weight) {
  const torch::NoGradGuard no_grad;
  weight.mul_(0.5f);
}

TEST(TorchChanges, WeightsWrittenInsideACallAreFound) {
  torch::manual_seed(7);
  const Net first;
  for (const Place& place : places())
    on(place, first, [](Net& model, const RankContext&) {
      const auto writing = [&](const Tensor& weight) {
        return message_of([&] {
          sherd::torch::call(
              *model,
              [&](const Tensor& x) {
                halve(weight);
                return model->tokens(x);
              },
              batch(0));
        });
      };
      EXPECT_THAT(writing(model->head->weight),
                  AllOf(HasSubstr("'head.weight'"), HasSubstr("unit 'root'"), HasSubstr("update_weights()")));
      sherd::torch::reset_step(*model);
      const torch::NoGradGuard evaluating;
      EXPECT_THAT(writing(model->tokens->weight), HasSubstr("'tokens.weight'"));
      EXPECT_EQ(message_of([&] { net_loss(model, 0); }), "");
    });
}

TEST(TorchChanges, WeightsWrittenWhileTheyAreUnshardedAreFoundOnEveryRank) {
  torch::manual_seed(7);
  const Net first;
  for (const Place& place : places())
    on(place, first, [&](Net& model, const RankContext& rank) {
      for (const bool all : {true, false})
        EXPECT_THAT(message_of([&] {
                      const sherd::torch::Unsharded whole(*model);
                      if (all || rank.world->rank() == 1) halve(model->blocks[1]->as<Block>()->up->weight);
                    }),
                    AllOf(HasSubstr("'blocks.1.up.weight'"), HasSubstr("update_weights()"),
                          HasSubstr(all && place.ranks == 2 ? "ranks 0, 1" : "1")));
      const sherd::torch::Unsharded reading(*model);
      EXPECT_GT(model->head->weight.abs().sum().item<float>(), 0);
    });
}

TEST(TorchChanges, WeightsWrittenInABackwardAreFound) {
  torch::manual_seed(7);
  const Net first;
  on(places().back(), first, [](Net& model, const RankContext&) {
    const Tensor logits = model(batch(0));
    logits.register_hook([](const Tensor& gradient) { return gradient; });
    model->blocks[1]->as<Block>()->norm->weight.register_hook(
        [&](const Tensor&) { halve(model->head->weight); });
    EXPECT_THAT(message_of([&] { logits.sum().backward(); }), HasSubstr("'head.weight'"));
  });
}

/// A weight in two places, and one that nothing trains.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : tokens(register_module("tokens", torch::nn::Embedding(7, 5))) {
    register_module("block", block);
    head = register_parameter("head", tokens->weight);
    scale = register_parameter("scale", torch::full({5}, 0.7f), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) { return torch::linear(block(tokens(x)) * scale, head); }
  torch::nn::Embedding tokens;
  Block block{5};
  Tensor head, scale;
};
SHERD_TORCH_MODULE(Tied);
Tensor tied_loss(Tied& m, int r) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(r));
  return m(torch::randint(0, 7, {4}, generator, torch::kLong)).square().mean();
}
/// Three steps, behind each of which `change` writes to weights.
template <class Step>
void train_tied(Tied& m, int rank, int ranks, Step step) {
  for (int i = 0; i < 3; ++i) {
    tied_loss(m, i * ranks + rank).backward();
    step();
  }
}
constexpr double kBound = 0.3;
/// Rows of unit length, and all else clipped: no function of elements.
void norm_rows(torch::nn::Module& m) {
  for (auto& p : m.named_parameters()) {
    if (p.key() == "tokens.weight") {
      p.value().div_(p.value().norm(2, {1}, true));
    } else if (p.key() != "head") {
      p.value().clamp_(-kBound, kBound);
    }
  }
}
void clip_all(torch::nn::Module& m) {
  for (auto& p : m.named_parameters()) p.value().clamp_(-kBound, kBound);
}

TEST(TorchChanges, UpdatedWeightsAreThoseOfPlainLibtorchUnderEveryStrategy) {
  torch::manual_seed(7);
  const Tied first;
  using Plain = void (*)(torch::nn::Module&);
  using Sharded = std::function<void(Tied&)>;
  const std::vector<std::pair<Plain, Sharded>> changes = {
      {norm_rows, [](Tied& m) { sherd::torch::update_weights(*m, [&] { norm_rows(*m); }); }},
      {clip_all, [](Tied& m) { sherd::torch::update_weights(*m, [&] { clip_all(*m); }); }},
      {clip_all, [](Tied& m) {
         sherd::torch::update_weights(
             *m, [](const std::string&, Tensor& shard) { shard.clamp_(-kBound, kBound); });
       }}};
  for (const Place& place : places())
    for (const auto& [plain_change, change] : changes) {
      at::set_num_threads(1);
      Tied plain;
      copy_weights(*first, *plain);
      torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(0.5));
      for (int i = 0; i < 3; ++i) {
        std::vector<Values> each;
        for (int r = 0; r < place.ranks; ++r) {
          optimizer.zero_grad();
          tied_loss(plain, i * place.ranks + r).backward();
          each.push_back(gradients(*plain));
        }
        const Values want = mean(each);
        for (auto& p : plain->named_parameters())
          if (p.value().requires_grad()) p.value().mutable_grad() = want.at(p.key()).clone();
        const torch::NoGradGuard no_grad;
        for (auto& p : plain->named_parameters())
          if (p.value().requires_grad() && p.key() != "head") p.value().sub_(p.value().grad() * 0.5);
        plain_change(*plain);
      }
      Values want;
      for (auto& p : plain->named_parameters()) want[p.key()] = p.value().detach();
      launch(place.ranks, [&, change = change](RankContext& rank) {
        Tied model;
        copy_weights(*first, *model);
        sherd::torch::fully_shard<BlockImpl>(*model, sherd::DeviceMesh(rank.world, place.dims),
                                             place.options);
        sherd::torch::LocalShards shards(*model);
        train_tied(model, rank.world->rank(), place.ranks, [&] {
          shards.step([&] {
            const torch::NoGradGuard no_grad;
            for (Tensor p : shards.parameters()) p.sub_(p.grad() * 0.5);
          });
          change(model);
        });
        expect_weights(*model, want, place.name);
        const sherd::torch::Unsharded whole(*model);
        for (auto& p : model->named_parameters())
          EXPECT_TRUE(torch::equal(p.value(), want.at(p.key()))) << p.key();
      });
    }
}

// Masters keep what bf16 does not hold, and the next forward computes with what was written.
TEST(TorchChanges, UpdatedWeightsKeepTheirF32Masters) {
  torch::manual_seed(7);
  const Net first;
  for (Place place : places()) {
    place.options.compute_dtype = sherd::DType::bf16;
    on(place, first, [&](Net& model, const RankContext&) {
      Values want;
      for (auto& p : first->named_parameters()) want[p.key()] = p.value().detach().clone();
      want["head.weight"].fill_(0.25);
      sherd::torch::update_weights(*model, [&] {
        EXPECT_EQ(model->head->weight.scalar_type(), torch::kFloat);
        model->head->weight.fill_(0.25);
      });
      expect_weights(*model, want, place.name);
      sherd::torch::update_weights(*model->blocks, [](const std::string&, Tensor& shard) { shard.mul_(1); });
      expect_weights(*model, want, place.name);
      {
        const sherd::torch::Unsharded whole(*model);
        EXPECT_EQ(model->head->weight.scalar_type(), torch::kBFloat16);
        EXPECT_TRUE((model->head->weight == 0.25).all().item<bool>());
        EXPECT_TRUE(torch::equal(model->tokens->weight, first->tokens->weight.to(torch::kBFloat16)));
      }
      net_loss(model, 0).backward();
    });
  }
}

TEST(TorchChanges, UpdatesThatCannotBeAreRefused) {
  torch::manual_seed(7);
  const Net first;
  on(places()[0], first, [&](Net& model, const RankContext& rank) {
    const auto refused = [&](const std::function<void()>& change, const char* why) {
      EXPECT_THAT(message_of([&] { sherd::torch::update_weights(*model, change); }),
                  AllOf(HasSubstr("update_weights"), HasSubstr(why)));
    };
    refused([&] { model->head->weight.fill_(rank.world->rank()); }, "on every rank");
    refused([&] { net_loss(model, 0); }, "call modules before or after");
    EXPECT_THAT(message_of([&] {
                  sherd::torch::update_weights(*model, [&] {
                    model->head->weight.zero_();
                    throw std::runtime_error("of the program");
                  });
                }),
                HasSubstr("of the program"));
    Values want;
    for (auto& p : first->named_parameters()) want[p.key()] = p.value().detach();
    expect_weights(*model, want, "nothing has changed");
    net_loss(model, 0).backward();
    refused([] {}, "gradients of this step are there");
    sherd::zero_grad(sherd::torch::root_of(*model));
    const Tensor due = net_loss(model, 0);
    refused([] {}, "backward is still to come");
    sherd::torch::reset_step(*model);
    {
      const sherd::torch::Unsharded whole(*model);
      refused([] {}, "unsharded");
    }
    torch::nn::Linear elsewhere(2, 2);
    EXPECT_THAT(message_of([&] { sherd::torch::update_weights(*elsewhere, [] {}); }),
                HasSubstr("no parameters of a tree"));
    net_loss(model, 0).backward();
  });
}

// -- requires_grad ---------------------------------------------------------------------------------------------------

enum class Phase { all, blocks_frozen, head_alone };
bool trains(Phase phase, const std::string& name) {
  return phase == Phase::all ||
         (phase == Phase::blocks_frozen ? !name.starts_with("blocks") : name.starts_with("head"));
}
void switch_to(Net& model, Phase phase) {
  for (auto& p : model->named_parameters()) p.value().set_requires_grad(trains(phase, p.key()));
}
const std::vector<Phase> kPhases = {Phase::all, Phase::blocks_frozen, Phase::head_alone,
                                    Phase::all, Phase::blocks_frozen, Phase::all};

using TorchAdamW = torch::optim::AdamW;
torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(1e-2).weight_decay(0.1); }

// The bits of plain libtorch, whose ranks' gradients were averaged.
TEST(TorchChanges, ParametersAreFrozenAndThawedBetweenStepsAsInPlainLibtorch) {
  torch::manual_seed(7);
  const Net first;
  for (Place place : places())
    for (const bool allow_unused : {false, true}) {
      place.root.allow_unused = allow_unused;
      at::set_num_threads(1);
      Net plain;
      copy_weights(*first, *plain);
      TorchAdamW optimizer(plain->parameters(), adamw());
      for (size_t step = 0; step < kPhases.size(); ++step) {
        switch_to(plain, kPhases[step]);
        std::vector<Values> each;
        for (int r = 0; r < place.ranks; ++r) {
          optimizer.zero_grad();
          net_backward(plain, static_cast<int>(step) * place.ranks + r);
          each.push_back(gradients(*plain));
        }
        const Values want = mean(each);
        for (auto& p : plain->named_parameters())
          if (p.value().requires_grad()) p.value().mutable_grad() = want.at(p.key());
        optimizer.step();
      }
      Values want;
      for (auto& p : plain->named_parameters()) want[p.key()] = p.value().detach();
      on(place, first, [&](Net& model, const RankContext& rank) {
        sherd::torch::LocalShards shards(*model);
        TorchAdamW mine(shards.parameters(), adamw());
        for (size_t step = 0; step < kPhases.size(); ++step) {
          switch_to(model, kPhases[step]);
          net_backward(model, static_cast<int>(step) * place.ranks + rank.world->rank());
          EXPECT_TRUE(shards.step([&] { mine.step(); }));
        }
        expect_weights(*model, want, fmt::format("{}, {}", place.name, allow_unused));
      });
    }
}

// sherd's own optimizers: what is frozen keeps weights and state, bit for bit, with weight decay and momentum.
TEST(TorchChanges, OptimizersLeaveFrozenParametersAlone) {
  torch::manual_seed(7);
  const Net first;
  for (const sherd::Algorithm& algorithm : {sherd::Algorithm::adamw, sherd::Algorithm::muon})
    for (const Strategy strategy : strategies())
      launch(2, [&](RankContext& rank) {
        Net model;
        copy_weights(*first, *model);
        sherd::torch::route(*model, {.optimizer = algorithm});
        FullyShardOptions options;
        options.strategy = strategy;
        options.compute_dtype = sherd::DType::bf16;
        options.layout = sherd::LayoutPolicy::whole_param;  // Muon's matrices are in buckets that span units
        sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), options);
        sherd::torch::Optimizer optimizer(*model, {.weight_decay = 0.1});
        sherd::Stream& compute = rank.device->compute();
        const auto bits = [&](bool frozen) {
          std::vector<float> all;
          const auto add = [&](const sherd::Tensor& t) {
            const auto more = sherd::ops::to_floats(compute, t);
            all.insert(all.end(), more.begin(), more.end());
          };
          const auto counts = [&](const std::string& name) { return name.starts_with("blocks") == frozen; };
          for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
            if (counts(name)) add(p.shard());
          for (auto& s : optimizer.state())
            if (counts(s.param.name())) add(s.local);
          for (auto& c : optimizer.counters())
            if (counts(c.param.name())) add(c.value);
          return all;
        };
        const auto whole = [&] {
          const sherd::torch::Unsharded unsharded(*model);
          std::vector<Tensor> all;
          for (auto& p : model->blocks->parameters()) all.push_back(p.to(torch::kFloat).reshape({-1}));
          return torch::cat(all);
        };
        const auto step = [&](int number) {
          net_backward(model, number);
          sherd::torch::clip_grad_norm(*model, 0.5);
          optimizer.step(1e-2);
        };
        step(0);
        switch_to(model, Phase::blocks_frozen);
        const auto frozen = bits(true), other = bits(false);
        const Tensor before = whole();
        step(1);
        step(2);
        EXPECT_TRUE(same_bits(frozen, bits(true))) << where(rank, strategy);
        EXPECT_FALSE(same_bits(other, bits(false))) << where(rank, strategy);
        EXPECT_TRUE(torch::equal(before, whole())) << where(rank, strategy);
        switch_to(model, Phase::all);
        step(3);
        EXPECT_FALSE(same_bits(frozen, bits(true)) && !frozen.empty()) << where(rank, strategy);
      });
}

// A discriminator that the generator's step goes through, and that is thawed for its own.
TEST(TorchChanges, ADiscriminatorThatIsFrozenInTheGeneratorsStep) {
  torch::manual_seed(7);
  const Block first_maker(6), first_judge(6);
  const auto loss_of_judge = [](auto& maker, auto& judge, int r) {
    const Tensor made = maker(random({3, 6}, r)).detach();
    return judge(random({3, 6}, 50 + r)).square().mean() - judge(made).square().mean();
  };
  const auto loss_of_maker = [](auto& maker, auto& judge, int r) {
    return judge(maker(random({3, 6}, r))).square().mean();
  };
  at::set_num_threads(1);
  Block maker(6), judge(6);
  copy_weights(*first_maker, *maker);
  copy_weights(*first_judge, *judge);
  TorchAdamW maker_rule(maker->parameters(), adamw()), judge_rule(judge->parameters(), adamw());
  for (int step = 0; step < 3; ++step) {
    for (auto& p : judge->parameters()) p.set_requires_grad(true);
    judge_rule.zero_grad();
    loss_of_judge(maker, judge, step).backward();
    judge_rule.step();
    for (auto& p : judge->parameters()) p.set_requires_grad(false);
    maker_rule.zero_grad();
    loss_of_maker(maker, judge, step).backward();
    maker_rule.step();
  }
  const auto values = [](Block& block) {
    Values all;
    for (auto& p : block->named_parameters()) all[p.key()] = p.value().detach();
    return all;
  };
  for (const Strategy strategy : strategies())
    launch(2, [&](RankContext& rank) {
      FullyShardOptions options;
      options.strategy = strategy;
      Block a(6), b(6);
      copy_weights(*first_maker, *a);
      copy_weights(*first_judge, *b);
      sherd::torch::fully_shard(*a, mesh_of(rank), options);
      sherd::torch::fully_shard(*b, mesh_of(rank), options);
      sherd::torch::LocalShards a_shards(*a), b_shards(*b);
      TorchAdamW a_rule(a_shards.parameters(), adamw()), b_rule(b_shards.parameters(), adamw());
      for (int step = 0; step < 3; ++step) {  // the same data on both ranks: their mean is each rank's
        for (auto& p : b->parameters()) p.set_requires_grad(true);
        loss_of_judge(a, b, step).backward();
        b_shards.step([&] { b_rule.step(); });
        for (auto& p : b->parameters()) p.set_requires_grad(false);
        loss_of_maker(a, b, step).backward();
        a_shards.step([&] { a_rule.step(); });
      }
      expect_weights(*a, values(maker), where(rank, strategy));
      expect_weights(*b, values(judge), where(rank, strategy));
    });
}

TEST(TorchChanges, RequiresGradIsNotSwitchedInTheMidstOfAStep) {
  torch::manual_seed(7);
  const Net first;
  on(places()[3], first, [](Net& model, const RankContext& rank) {
    const auto refused = [&](const std::function<void()>& f, const char* why) {
      EXPECT_THAT(message_of(f), AllOf(HasSubstr("requires_grad of parameter 'blocks."), HasSubstr(why)));
      switch_to(model, Phase::all);
      sherd::torch::reset_step(*model);
    };
    {
      const sherd::Accumulate accumulate(sherd::torch::root_of(*model));
      net_backward(model, 0);
    }
    switch_to(model, Phase::blocks_frozen);
    refused([&] { net_backward(model, 1); }, "gradients of this step");
    const Tensor due = net_loss(model, 0);
    switch_to(model, Phase::blocks_frozen);
    refused([&] { due.backward(); }, "between a forward and its backward");
    const Tensor other = net_loss(model, 0);
    switch_to(model, Phase::blocks_frozen);
    refused([&] { net_loss(model, 1); }, "backward is still to come");
    // On one rank alone.
    if (rank.world->rank() == 1) model->head->weight.set_requires_grad(false);
    EXPECT_THAT(message_of([&] { net_loss(model, 1); }),
                AllOf(HasSubstr("requires_grad"), HasSubstr("rank 1")));
    model->head->weight.set_requires_grad(true);
    net_backward(model, 1);
  });
  // Parameters that were frozen when the model was sharded have no memory for gradients.
  launch(2, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    model->tokens->weight.set_requires_grad(false);
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
    model->tokens->weight.set_requires_grad(true);
    EXPECT_THAT(message_of([&] { net_loss(model, 0); }),
                AllOf(HasSubstr("'tokens.weight'"), HasSubstr("fully_shard()")));
  });
}

}  // namespace
}  // namespace torch_test
