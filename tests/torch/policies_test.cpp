// Policies by type and by name: units, dtypes, recomputation, schedules of the learning rate, matrices inside of parameters.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include <sherd/torch/generator.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>
#include <sherd/torch/policies.h>
#include <sherd/torch/sync_batch_norm.h>
#include <sherd/torch/transformer.h>
#include <sherd/torch/unsharded.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

// libtorch's own container, whose layers are made inside of it.
struct BuiltTranslatorImpl : nn::Module {
  static constexpr int64_t kWidth = 8;
  BuiltTranslatorImpl() {
    const auto options = nn::TransformerOptions(kWidth, 2, 2, 2).dim_feedforward(12).dropout(0);
    layers = register_module("layers", nn::Transformer(options));
  }
  Tensor forward(const Tensor& source, const Tensor& target) {
    return layers(source, target, Tensor(),
                  nn::TransformerImpl::generate_square_subsequent_mask(target.size(0)));
  }
  nn::Transformer layers = nullptr;
};
SHERD_TORCH_MODULE(BuiltTranslator);

sherd::torch::ModuleChoice translator_layers() {
  return sherd::torch::of_type<nn::TransformerEncoderLayerImpl, nn::TransformerDecoderLayerImpl>();
}

TEST(TorchPolicies, LayersOfLibtorchsTransformerAreUnits) {
  Comparison<BuiltTranslator>{[](BuiltTranslator& m, int r) {
                                return m(random({4, 3, 8}, r), random({5, 3, 8}, r + 10)).square().mean();
                              },
                              [](BuiltTranslator& m, const auto& mesh, const auto& options) {
                                const auto names = m->named_parameters().keys();
                                sherd::torch::replace_layers(*m->layers);
                                EXPECT_EQ(m->named_parameters().keys(), names);
                                EXPECT_EQ(sherd::torch::wrap_each(*m, translator_layers(), mesh, options), 4);
                              }}
      .run();
}

/// An encoder and a decoder that the program holds and calls itself.
struct BuiltCodersImpl : nn::Module {
  BuiltCodersImpl() {
    encoder = register_module("encoder", sherd::torch::TransformerEncoder(nn::TransformerEncoder(
                                             nn::TransformerEncoderLayer(encoder_layer()), 2)));
    decoder = register_module("decoder", sherd::torch::TransformerDecoder(nn::TransformerDecoder(
                                             nn::TransformerDecoderLayer(decoder_layer()), 2)));
  }
  static nn::TransformerEncoderLayerOptions encoder_layer() {
    return nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  }
  static nn::TransformerDecoderLayerOptions decoder_layer() {
    return nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  }
  Tensor forward(const Tensor& source, const Tensor& target) { return decoder(target, encoder(source)); }
  sherd::torch::TransformerEncoder encoder = nullptr;
  sherd::torch::TransformerDecoder decoder = nullptr;
};
SHERD_TORCH_MODULE(BuiltCoders);

TEST(TorchPolicies, LayersOfCodersThatAProgramHoldsAreUnits) {
  const nn::TransformerEncoder encoder(nn::TransformerEncoderLayer(BuiltCodersImpl::encoder_layer()), 2);
  nn::TransformerEncoder same(encoder);
  sherd::torch::TransformerEncoder sharded(encoder);
  EXPECT_EQ(sharded->named_parameters().keys(), encoder->named_parameters().keys());
  const Tensor x = random({4, 3, 8}, 1);
  EXPECT_TRUE(torch::equal(sharded(x), same(x)));
  Comparison<BuiltCoders>{[](BuiltCoders& m, int r) {
                            return m(random({4, 3, 8}, r), random({5, 3, 8}, r + 10)).square().mean();
                          },
                          [](BuiltCoders& m, const auto& mesh, const auto& options) {
                            EXPECT_EQ(sherd::torch::wrap_each(*m, translator_layers(), mesh, options), 4);
                          }}
      .run();
}

TEST(TorchPolicies, LayersThatCannotBeReplacedSaySo) {
  launch(1, [](RankContext& rank) {
    BuiltTranslator model;
    sherd::torch::replace_layers(*model->layers);
    EXPECT_THAT(message_of([&] { sherd::torch::replace_layers(*model->layers); }),
                HasSubstr("the encoder is a custom one, or replaced already"));
    BuiltTranslator wrapped;
    sherd::torch::wrap_each(*wrapped, translator_layers(), mesh_of(rank));
    EXPECT_THAT(message_of([&] { sherd::torch::replace_layers(*wrapped->layers); }),
                HasSubstr("that wrap() or fully_shard() has seen"));
    EXPECT_THAT(message_of([&] {
                  sherd::torch::wrap_each(*model, sherd::torch::of_type<nn::LSTMImpl>(), mesh_of(rank));
                }),
                HasSubstr("no module below the root is chosen"));
    EXPECT_THAT(message_of([] { sherd::torch::of_name("("); }),
                HasSubstr("sherd::torch::of_name: '(': not a regular expression"));
  });
}

// Dtypes of a block's parameters and activations while it runs.
struct SeenBlockImpl : nn::Module {
  explicit SeenBlockImpl(int64_t width)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        up(register_module("up", nn::Linear(width, width))) {}
  Tensor forward(const Tensor& x, double scale = 2, bool twice = false) {
    ++runs;
    seen = {norm->weight.scalar_type(), up->weight.scalar_type()};
    const Tensor y = x + scale * torch::dropout(up(norm(x)), 0.3, true);
    return twice ? y + y : y;
  }
  nn::LayerNorm norm;
  nn::Linear up;
  int runs = 0;
  std::vector<at::ScalarType> seen;
};
SHERD_TORCH_MODULE(SeenBlock);

struct SeenNetImpl : nn::Module {
  SeenNetImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(SeenBlock(6));
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& block : *blocks) h = block->as<SeenBlock>()->forward(h, 2, false);
    return h;
  }
  std::vector<int> runs() const {
    std::vector<int> all;
    for (const auto& block : *blocks) all.push_back(block->as<SeenBlock>()->runs);
    return all;
  }
  nn::ModuleList blocks;
};
SHERD_TORCH_MODULE(SeenNet);

TEST(TorchPolicies, ComputeDtypesAreChosenByTypeAndByName) {
  for (const auto& choice : {sherd::torch::norms(), sherd::torch::of_name("[02]\\.norm$"),
                             sherd::torch::of_type<nn::LayerNormImpl>()})
    launch(2, [&](RankContext& rank) {
      torch::manual_seed(1);
      SeenNet model;
      for (auto& p : model->parameters()) p.data().fill_(0.1f);
      const bool every = choice(*model->blocks[1]->as<SeenBlock>()->norm, "blocks.1.norm");
      EXPECT_EQ(sherd::torch::set_compute_dtype(*model, choice, sherd::DType::f32), every ? 8 : 4);
      sherd::torch::fully_shard<SeenBlockImpl>(*model, mesh_of(rank), {.compute_dtype = sherd::DType::bf16});
      model(random({3, 6}, 1)).to(torch::kFloat).square().mean().backward();
      for (size_t i = 0; i < 4; ++i) {
        const auto norm = every || i % 2 == 0 ? at::kFloat : at::kBFloat16;
        EXPECT_THAT(model->blocks[i]->as<SeenBlock>()->seen, ::testing::ElementsAre(norm, at::kBFloat16));
      }
    });
  launch(1, [](RankContext&) {
    SeenNet model;
    EXPECT_THAT(message_of([&] {
                  sherd::torch::set_compute_dtype(*model, sherd::torch::of_name("blocks$"),
                                                  sherd::DType::f32);
                }),
                HasSubstr("have no parameters of their own"));
  });
}

Tensor seen_loss(SeenNet& model, int rank) {
  const sherd::torch::ThreadGenerator dropout(100 + static_cast<uint64_t>(rank));
  return model(random({3, 6}, rank)).square().mean();
}

sherd::torch::ModuleChoice seen_blocks() { return sherd::torch::of_type<SeenBlockImpl>(); }

TEST(TorchPolicies, CallsThatAreComputedAgainHaveTheSameBits) {
  for (const bool units : {true, false})
    Comparison<SeenNet>{seen_loss,
                        [&](SeenNet& m, const auto& mesh, const auto& options) {
                          if (units) sherd::torch::wrap_each(*m, seen_blocks(), mesh, options);
                          sherd::torch::recompute_calls(*m, seen_blocks(), 2);
                        }}
        .run();
}

TEST(TorchPolicies, EverySecondBlockIsComputedAgain) {
  launch(2, [](RankContext& rank) {
    torch::manual_seed(1);
    SeenNet model;
    for (auto& p : model->parameters()) p.data().fill_(0.1f);
    sherd::torch::fully_shard<SeenBlockImpl>(*model, mesh_of(rank));
    EXPECT_EQ(sherd::torch::recompute_calls(*model, seen_blocks(), 2), 2);
    seen_loss(model, 0).backward();
    EXPECT_THAT(model->runs(), ::testing::ElementsAre(2, 1, 2, 1));
    sherd::zero_grad(sherd::torch::root_of(*model));
    EXPECT_EQ(sherd::torch::recompute_calls(*model, sherd::torch::of_name("[.]3$")), 1);
    seen_loss(model, 0).backward();
    EXPECT_THAT(model->runs(), ::testing::ElementsAre(3, 2, 3, 3));
    EXPECT_THAT(message_of([&] { sherd::torch::recompute_calls(*model, seen_blocks(), 0); }),
                HasSubstr("every = 0; give 1"));
  });
}

TEST(TorchPolicies, DefaultArgumentsOfForwardStay) {
  launch(1, [](RankContext& rank) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    SeenBlock block(6), model(6);
    copy_weights(*block, *model);
    sherd::torch::fully_shard(*model, mesh_of(rank));
    block->eval();
    const torch::NoGradGuard no_grad;
    const Tensor x = random({3, 6}, 1);
    const auto run = [&](auto&& call) {
      const sherd::torch::ThreadGenerator dropout(5);
      return call();
    };
    const Tensor want = run([&] { return block->SeenBlockImpl::forward(x, 2, false); });
    EXPECT_TRUE(torch::equal(run([&] { return model->forward(x); }), want));
    EXPECT_TRUE(torch::equal(run([&] { return model->forward(x, 2); }), want));
    EXPECT_TRUE(torch::equal(run([&] { return model->forward(x, 0, true); }), 2 * x));
    EXPECT_TRUE(torch::equal(run([&] { return model(x); }), want));
  });
}

TEST(TorchPolicies, SchedulersOfLibtorchSetTheRate) {
  torch::manual_seed(7);
  const Net first;
  launch(2, [&](RankContext& rank) {
    std::vector<Values> weights;
    for (const bool scheduled : {false, true}) {
      Net model;
      copy_weights(*first, *model);
      sherd::torch::route(*model, {.optimizer = sherd::Algorithm::muon});
      sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
      sherd::torch::Optimizer optimizer(*model);
      sherd::torch::ScheduledRate rate(1e-2);
      torch::optim::StepLR schedule(rate, 2, 0.5);
      for (int step = 0; step < 4; ++step) {
        net_backward(model, step);
        // libtorch's StepLR counts its calls from 0, and lowers the rate in the third one.
        optimizer.step(scheduled ? rate.now() : step < 3 ? 1e-2 : 1e-2 * 0.5);
        schedule.step();
      }
      weights.emplace_back();
      const sherd::torch::Unsharded whole(*model);
      for (auto& p : model->named_parameters()) weights.back()[p.key()] = p.value().clone();
    }
    for (const auto& [name, value] : weights[0])
      EXPECT_TRUE(torch::equal(weights[1].at(name), value)) << name;
  });
}

TEST(TorchPolicies, SchedulersOfOptimizersOverShardsAreThoseOfPlainLibtorch) {
  torch::manual_seed(7);
  const Net first;
  at::set_num_threads(1);
  Net plain;
  copy_weights(*first, *plain);
  const auto train = [](Net& model, torch::optim::Optimizer& optimizer, const auto& update) {
    torch::optim::StepLR schedule(optimizer, 2, 0.5);
    for (int step = 0; step < 4; ++step) {
      net_backward(model, step);
      update();
      schedule.step();
    }
  };
  torch::optim::AdamW adamw(plain->parameters(), torch::optim::AdamWOptions(1e-2));
  train(plain, adamw, [&] {
    adamw.step();
    adamw.zero_grad();
  });
  Values want;
  for (auto& p : plain->named_parameters()) want[p.key()] = p.value().detach();
  launch(2, [&](RankContext& rank) {
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    sherd::torch::LocalShards shards(*model);
    torch::optim::AdamW own(shards.parameters(), torch::optim::AdamWOptions(1e-2));
    train(model, own, [&] { shards.step([&] { own.step(); }); });
    expect_weights(*model, want, "four steps");
  });
}

// Names and rows of the matrices of each parameter.
std::vector<std::string> matrices_in(nn::Module& module) {
  std::vector<std::string> all;
  for (auto& [name, p] : sherd::torch::root_of(module).named_parameters()) {
    std::string blocks;
    for (const sherd::RowBlock& b : p.row_blocks())
      blocks += fmt::format(" {} {}..{}", b.name, b.begin, b.begin + b.rows());
    if (!blocks.empty()) all.push_back(name + ":" + blocks);
  }
  return all;
}

TEST(TorchPolicies, PackedProjectionsAndGatesAreMatricesOfTheirOwn) {
  using ::testing::ElementsAre;
  EXPECT_THAT(matrices_in(*nn::MultiheadAttention(4, 2)),
              ElementsAre("in_proj_weight: q 0..4 k 4..8 v 8..12"));
  EXPECT_THAT(matrices_in(*nn::LSTM(nn::LSTMOptions(3, 2).proj_size(1))),
              ElementsAre("weight_ih_l0: input 0..2 forget 2..4 cell 4..6 output 6..8",
                          "weight_hh_l0: input 0..2 forget 2..4 cell 4..6 output 6..8"));
  EXPECT_THAT(matrices_in(*nn::GRUCell(3, 2)), ElementsAre("weight_ih: reset 0..2 update 2..4 new 4..6",
                                                           "weight_hh: reset 0..2 update 2..4 new 4..6"));
  EXPECT_THAT(matrices_in(*nn::RNN(3, 2)), ElementsAre());
  nn::LSTM own(3, 2);
  sherd::torch::root_of(*own).named_parameters()[0].second.set_row_blocks({4, 4});
  EXPECT_EQ(matrices_in(*own)[0], "weight_ih_l0: 0 0..4 1 4..8");
}

}  // namespace
}  // namespace torch_test
