// Modules that are made on the meta device and given their values piece by piece; generators of a thread's own.
#include <thread>

#include <sherd/kernels/random/random.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/meta_device.h>
#include <sherd/torch/unsharded.h>

#include "torch/memory.h"
#include "torch/net.h"

namespace torch_test {
namespace {

using torch::Tensor;

constexpr uint64_t kSeed = 5;

template <class Module, class... Args>
Module on_meta(const Args&... args) {
  const sherd::torch::MetaDevice meta;
  return Module(args...);
}

/// The values that a module made on the meta device gets, in one made on the CPU.
void reset_as_documented(torch::nn::Module& root) {
  for (const auto& m : root.named_modules("", /*include_self=*/false)) {
    const sherd::torch::ThreadGenerator random(sherd::hash64(kSeed, m.key()));
    sherd::torch::reset_parameters(*m.value());
  }
}

void expect_meta(const torch::nn::Module& model) {
  for (auto& p : model.named_parameters()) EXPECT_TRUE(p.value().is_meta()) << p.key();
}

Values weights_of(const torch::nn::Module& model) {
  Values all;
  for (auto& p : model.named_parameters()) all[p.key()] = p.value().detach().clone();
  return all;
}

const sherd::RootOptions kSeeded{.seed = kSeed};

TEST(TorchMeta, ValuesAreThoseOfSeedAndNameOnAnyRanks) {
  Net plain;
  reset_as_documented(*plain);
  const Values want = weights_of(*plain);
  EXPECT_GT(want.at("blocks.1.up.weight").abs().sum().item<float>(), 1.0f);
  EXPECT_FALSE(torch::equal(want.at("blocks.1.up.weight"), want.at("blocks.2.up.weight")));
  for (const int ranks : {1, 3, 4}) {
    const Values gradients = mean_gradients(plain, ranks, net_backward);
    for (const Strategy strategy : strategies()) {
      launch(ranks, [&](RankContext& rank) {
        Net model = on_meta<Net>();
        expect_meta(*model);
        const Tensor handle = model->head->weight;
        const void* const before = handle.unsafeGetTensorImpl();
        sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), {.strategy = strategy}, kSeeded);
        EXPECT_EQ(model->head->weight.unsafeGetTensorImpl(), before);
        EXPECT_TRUE(handle.is_cpu());
        EXPECT_TRUE(handle.requires_grad());
        expect_weights(*model, want, where(rank, strategy));
        net_loss(model, rank.world->rank()).backward();
        expect_gradients(*model, gradients, where(rank, strategy));
      });
    }
  }
}

struct ZooImpl : torch::nn::Module {
  template <class M, class... Args>
  void add(const char* name, Args&&... args) {
    register_module(name, std::make_shared<M>(std::forward<Args>(args)...));
  }
  ZooImpl() {
    namespace nn = torch::nn;
    add<nn::LinearImpl>("linear", 5, 4);
    add<nn::BilinearImpl>("bilinear", 3, 4, 2);
    add<nn::EmbeddingImpl>("embedding", nn::EmbeddingOptions(7, 3).padding_idx(2));
    add<nn::EmbeddingBagImpl>("bag", 7, 3);
    add<nn::LayerNormImpl>("layer_norm", nn::LayerNormOptions({6}));
    add<nn::GroupNormImpl>("group_norm", 2, 6);
    add<nn::BatchNorm2dImpl>("batch_norm", 5);
    add<nn::InstanceNorm1dImpl>("instance_norm",
                                nn::InstanceNorm1dOptions(5).affine(true).track_running_stats(true));
    add<nn::Conv1dImpl>("conv1", 3, 4, 2);
    add<nn::Conv3dImpl>("conv3", 3, 4, 2);
    add<nn::ConvTranspose2dImpl>("transposed", 3, 4, 2);
    add<nn::RNNImpl>("rnn", 3, 4);
    add<nn::LSTMImpl>("lstm", nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true));
    add<nn::GRUImpl>("gru", 3, 4);
    add<nn::LSTMCellImpl>("cell", 3, 4);
    add<nn::PReLUImpl>("prelu", nn::PReLUOptions().num_parameters(3).init(0.4));
    add<nn::AdaptiveLogSoftmaxWithLossImpl>("adaptive", 32, 10, std::vector<int64_t>{4, 6});
    add<nn::MultiheadAttentionImpl>("attention", 8, 2);
    add<nn::TransformerImpl>(
        "transformer",
        nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(12));
  }
};
TORCH_MODULE(Zoo);

TEST(TorchMeta, ModulesOfLibtorchs) {
  Zoo plain;
  reset_as_documented(*plain);
  const Values want = weights_of(*plain);
  launch(2, [&](RankContext& rank) {
    Zoo model = on_meta<Zoo>();
    expect_meta(*model);
    for (auto& b : model->named_buffers()) EXPECT_TRUE(b.value().is_meta()) << b.key();
    sherd::torch::fully_shard(*model, mesh_of(rank), {}, kSeeded);
    const sherd::torch::Unsharded whole(*model);
    for (auto& p : model->named_parameters()) {
      const std::string& name = p.key();
      const Tensor& w = p.value();
      if (name.starts_with("transformer") && w.dim() > 1) {  // xavier_uniform_
        const double limit = std::sqrt(6.0 / static_cast<double>(w.size(0) + w.size(1)));
        EXPECT_LE(w.abs().max().item<double>(), limit) << name;
        EXPECT_GE(w.abs().max().item<double>(), 0.8 * limit) << name;
      } else if (name.find("out_proj.bias") != std::string::npos) {
        EXPECT_TRUE((w == 0).all().item<bool>()) << name;
      } else {
        EXPECT_TRUE(torch::equal(w, want.at(name))) << name;
      }
    }
    const auto buffers = plain->named_buffers();
    for (auto& b : model->named_buffers()) {
      EXPECT_TRUE(b.value().is_cpu()) << b.key();
      EXPECT_TRUE(torch::equal(b.value(), buffers[b.key()])) << b.key();
    }
  });
}

// Modules of the program's own: with a reset of its own, tied to another module's, frozen; and one of an
// unknown type.
struct OwnImpl : torch::nn::Module, sherd::torch::Resettable {
  explicit OwnImpl(int64_t n)
      : scale(register_parameter("scale", torch::empty({n}))),
        table(register_buffer("table", torch::empty({n}))) {
    OwnImpl::reset_parameters();
  }
  void reset_parameters() override {
    torch::nn::init::normal_(scale, 3, 0.1);
    table.copy_(torch::arange(scale.size(0), scale.options().device(table.device()).requires_grad(false)));
  }
  Tensor forward(const Tensor& x) { return x * scale + table; }
  Tensor scale, table;
};
TORCH_MODULE(Own);
struct TiedHeadImpl : torch::nn::Module, sherd::torch::Resettable {
  explicit TiedHeadImpl(const Tensor& w)
      : weight(register_parameter("weight", w)),
        bias(register_parameter("bias", torch::empty({w.size(0)}))) {}
  void reset_parameters() override {
    torch::nn::init::zeros_(weight);
    torch::nn::init::ones_(bias);
  }
  Tensor forward(const Tensor& x) { return torch::linear(x, weight, bias); }
  Tensor weight, bias;
};
TORCH_MODULE(TiedHead);
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(bool with_unknown) {
    register_module("tokens", tokens);
    register_module("own", own);
    head = register_module("head", TiedHead(tokens->weight));
    own->scale.set_requires_grad(false);
    on_cpu = register_parameter("on_cpu", torch::ones({2}, torch::kCPU));
    if (with_unknown) {
      register_parameter("unknown", torch::empty({2, 3}));
      register_buffer("unknown_too", torch::empty({2}));
    }
  }
  Tensor forward(const Tensor& x) { return head(own(tokens(x))) * on_cpu.sum(); }
  torch::nn::Embedding tokens{9, 6};
  Own own{6};
  TiedHead head = nullptr;
  Tensor on_cpu;
};
SHERD_TORCH_MODULE(Mixed);

TEST(TorchMeta, OwnTiedAndFrozenParameters) {
  launch(3, [&](RankContext& rank) {
    Mixed model = on_meta<Mixed>(false);
    EXPECT_TRUE(model->on_cpu.is_cpu());
    sherd::torch::fully_shard(*model, mesh_of(rank), {}, kSeeded);
    const auto same = [&](const std::string& name, const Tensor& have,
                          const std::function<void(const Tensor&)>& make) {
      const Tensor want = torch::empty(have.sizes());
      const sherd::torch::ThreadGenerator random(sherd::hash64(kSeed, name));
      make(want);
      EXPECT_TRUE(torch::equal(have, want)) << name;
    };
    {
      const sherd::torch::Unsharded whole(*model);
      EXPECT_TRUE(model->head->weight.is_same(model->tokens->weight));
      same("tokens", model->tokens->weight, [](const Tensor& t) { t.normal_(); });
      same("own", model->own->scale, [](const Tensor& t) { t.normal_(3, 0.1); });
      EXPECT_FALSE(model->own->scale.requires_grad());
      EXPECT_TRUE(torch::equal(model->own->table, torch::arange(6, torch::kFloat)));
      EXPECT_TRUE(torch::equal(model->on_cpu, torch::ones({2})));
      EXPECT_TRUE(torch::equal(model->head->bias, torch::ones({9})));
    }
    model(torch::tensor({1, 2, 3})).sum().backward();
  });
}

TEST(TorchMeta, AFunctionOfTheProgramsOwn) {
  launch(2, [&](RankContext& rank) {
    Mixed model = on_meta<Mixed>(true);
    int calls = 0;
    sherd::torch::fully_shard(*model, mesh_of(rank), {}, kSeeded, [&](torch::nn::Module& module) {
      ++calls;
      if (sherd::torch::reset_parameters(module)) return;
      for (auto& p : module.named_parameters(/*recurse=*/false))
        if (p.key() == "unknown") p.value().uniform_(4, 5);
      module.named_buffers(/*recurse=*/false)["unknown_too"].fill_(6);
    });
    EXPECT_EQ(calls, 4);
    const sherd::torch::Unsharded whole(*model);
    const Tensor unknown = model->named_parameters()["unknown"];
    EXPECT_GE(unknown.min().item<float>(), 4.0f);
    EXPECT_LE(unknown.max().item<float>(), 5.0f);
    EXPECT_EQ(model->named_buffers()["unknown_too"].sum().item<float>(), 12.0f);
  });
}

TEST(TorchMeta, WhatHasNoValuesIsNamed) {
  launch(2, [&](RankContext& rank) {
    const auto expect = [](const std::vector<std::string>& parts, const std::function<void()>& f) {
      const std::string message = message_of(f);
      for (auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    };
    Mixed model = on_meta<Mixed>(true);
    expect({"unknown, unknown_too", "Resettable"},
           [&] { sherd::torch::fully_shard(*model, mesh_of(rank), {}, kSeeded); });
    Mixed halved = on_meta<Mixed>(false);
    expect({"head.bias", "own.scale", "were not written"}, [&] {
      sherd::torch::fully_shard(*halved, mesh_of(rank), {}, kSeeded, [](torch::nn::Module& module) {
        if (auto* e = module.as<torch::nn::Embedding>()) e->reset_parameters();
        if (auto* own = module.as<OwnImpl>()) own->table.zero_();
      });
    });
    Net differs = on_meta<Net>();
    expect({"other first values"}, [&] {
      sherd::torch::fully_shard(*differs, mesh_of(rank), {}, kSeeded, [&](torch::nn::Module& module) {
        for (auto& p : module.parameters(/*recurse=*/false)) p.fill_(static_cast<float>(rank.world->rank()));
      });
    });
  });
}

TEST(TorchMeta, NoRankEverHoldsTheWholeModel) {
  constexpr int64_t kWidth = 256, kLayers = 8, kModule = 4 * (kWidth * kWidth + kWidth);
  launch(2, [&](RankContext& rank) {
    const MemoryMeter meter;
    torch::nn::Sequential model = [&] {
      const sherd::torch::MetaDevice meta;
      torch::nn::Sequential layers;
      for (int64_t i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
      return layers;
    }();
    sherd::torch::fully_shard<torch::nn::LinearImpl>(*model, mesh_of(rank));
    EXPECT_GE(meter.peak(), kModule);
    EXPECT_LE(meter.peak(), 3 * kModule / 2);  // one, and what reads it
    EXPECT_LE(meter.held(), kModule / 8);
  });
}

TEST(TorchGenerator, ThreadsDrawFromTheirOwn) {
  const auto drawn = [] {
    return torch::cat({torch::randn({40}), torch::dropout(torch::ones({100}), 0.5, true), torch::rand({3}),
                       torch::randperm(20).to(torch::kFloat), torch::empty({9}).uniform_(),
                       torch::randn({5})});
  };
  std::vector<Tensor> want;
  for (const uint64_t seed : {11u, 12u}) {
    torch::manual_seed(seed);
    want.push_back(drawn());
  }
  torch::manual_seed(13);
  const Tensor shared = drawn();
  torch::manual_seed(13);
  std::vector<std::thread> threads;
  for (const size_t i : {size_t{0}, size_t{1}})
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const sherd::torch::ThreadGenerator random(11 + i);
        EXPECT_TRUE(torch::equal(drawn(), want[i]));
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_TRUE(torch::equal(drawn(), shared));  // it is unused
  const sherd::torch::ThreadGenerator outer(11);
  {
    const sherd::torch::ThreadGenerator inner(12);
    EXPECT_TRUE(torch::equal(drawn(), want[1]));
  }
  EXPECT_TRUE(torch::equal(drawn(), want[0]));
}

}  // namespace
}  // namespace torch_test
