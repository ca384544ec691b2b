// Modules whose ranks share sequences.
#include <sherd/fsdp/read_loss.h>
#include <sherd/torch/context_attention.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/recompute.h>
#include <sherd/torch/unsharded.h>

#include "torch/support.h"

// docs/libtorch.md
#include "page/context_attention.h"

namespace torch_test::context {
namespace {

using sherd::nn::ContextParallel;
using sherd::nn::SequenceSlice;
using sherd::torch::context_attention;
using sherd::torch::slice_of;
using torch::Tensor;

constexpr int64_t kVocab = 17, kSeq = 13, kBatch = 2, kHeads = 12, kHeadWidth = 4, kWidth = 24;

/// Variants of attention.
struct Kind {
  bool grouped = false;    // two heads for each key head
  bool masked = false;     // a mask for each head, in place of is_causal
  bool exchanges = true;   // false: plain attention over slices
  bool recompute = false;  // each block
};

/// Causal and with a slope for each head.
Tensor mask_of(int64_t heads) {
  const Tensor at = torch::arange(kSeq), apart = at.unsqueeze(1) - at;
  const Tensor slopes = 0.1 * torch::arange(1, heads + 1).view({heads, 1, 1});
  return (-slopes * apart).masked_fill(apart < 0, -INFINITY);
}

struct AttendBlockImpl : torch::nn::Module {
  explicit AttendBlockImpl(const Kind& of)
      : kind(of),
        heads(of.grouped ? 2 * kHeads : kHeads),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, (heads + 2 * kHeads) * kHeadWidth))),
        out(register_module("out", torch::nn::Linear(heads * kHeadWidth, kWidth))),
        up(register_module("up", torch::nn::Linear(kWidth, 3 * kWidth))),
        down(register_module("down", torch::nn::Linear(3 * kWidth, kWidth))) {}
  Tensor forward(const Tensor& x, const SequenceSlice& slice) {
    const Tensor all = qkv(norm(x)).view({x.size(0), x.size(1), -1, kHeadWidth}).transpose(1, 2);
    const auto parts = all.split_with_sizes({heads, kHeads, kHeads}, 1);
    const std::optional<Tensor> mask = kind.masked ? std::optional(mask_of(heads)) : std::nullopt;
    const Tensor seen =
        kind.exchanges
            ? context_attention(parts[0], parts[1], parts[2], slice, mask, 0, !mask, {}, kind.grouped)
            : at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    const Tensor h = x + out(seen.transpose(1, 2).flatten(2));
    return h + down(torch::gelu(up(h)));
  }
  const Kind kind;
  const int64_t heads;
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out, up, down;
};
SHERD_TORCH_MODULE(AttendBlock);

struct AttendNetImpl : torch::nn::Module {
  explicit AttendNetImpl(const Kind& of = {})
      : tokens(register_module("tokens", torch::nn::Embedding(kVocab, kWidth))),
        positions(register_module("positions", torch::nn::Embedding(kSeq, kWidth))) {
    for (int i = 0; i < 2; ++i) blocks->push_back(AttendBlock(of));
    register_module("blocks", blocks);
    register_module("head", head = torch::nn::Linear(kWidth, kVocab));
  }
  Tensor forward(const Tensor& x, const SequenceSlice& slice) {
    const int64_t first = slice.first();
    Tensor h = tokens(x) + positions(torch::arange(first, first + x.size(1)));
    for (const auto& block : *blocks) {
      const auto run = [block](const Tensor& y, const SequenceSlice& of) {
        return block->as<AttendBlock>()->forward(y, of);
      };
      h = block->as<AttendBlock>()->kind.recompute ? sherd::torch::recompute(run, h, slice) : run(h, slice);
    }
    return head(h);
  }
  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = nullptr;
};
SHERD_TORCH_MODULE(AttendNet);

Tensor tokens() {
  torch::Generator generator = at::detail::createCPUGenerator(100);
  return torch::randint(0, kVocab, {kBatch, kSeq + 1}, generator, torch::kLong);
}

/// By the page's code.
Tensor loss_of(AttendNet& model, const Tensor& whole, const ContextParallel& ranks) {
  return ::loss_of(model, whole.slice(1, 0, kSeq), whole.slice(1, 1), ranks);
}

struct Result {
  std::vector<double> losses;
  Values weights;
};

sherd::DeviceMesh mesh_of(const RankContext& rank, int context) {
  return sherd::DeviceMesh(rank.world, {{"shard", rank.world->size() / context}, {"context", context}});
}

AttendNet sharded_net(const AttendNet& first, const Kind& kind, const sherd::DeviceMesh& mesh,
                      Strategy strategy) {
  AttendNet model(kind);
  copy_weights(*first, *model);
  sherd::torch::fully_shard<AttendBlockImpl>(*model, mesh, {.strategy = strategy});
  return model;
}

Result trained(const AttendNet& first, const Kind& kind, int shards, int context, Strategy strategy) {
  Result result;
  launch(shards * context, [&](RankContext& rank) {
    const sherd::DeviceMesh mesh = mesh_of(rank, context);
    const ContextParallel ranks = ContextParallel::of(mesh);
    AttendNet model = sharded_net(first, kind, mesh, strategy);
    const sherd::ModuleBase& root = sherd::torch::root_of(*model);
    sherd::torch::LocalShards shards_of(*model);
    torch::optim::SGD optimizer(shards_of.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const int64_t own = kBatch / shards, begin = own * mesh.coordinate("shard");
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = loss_of(model, tokens().slice(0, begin, begin + own), ranks);
      loss.backward();
      shards_of.step([&] { optimizer.step(); });
      const double mean = sherd::mean_over_ranks(root, loss.item<double>());
      if (rank.world->rank() == 0) result.losses.push_back(mean);
    }
    const sherd::torch::Unsharded whole(*model);
    if (rank.world->rank() == 0)
      for (auto& p : model->named_parameters()) result.weights[p.key()] = p.value().clone();
  });
  return result;
}

void expect_close(const Result& have, const Result& want, const std::string& where) {
  ASSERT_EQ(have.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(have.losses[i], want.losses[i], 1e-5) << where;
  for (auto& [name, value] : want.weights)
    EXPECT_TRUE(torch::allclose(have.weights.at(name), value, 1e-5, 1e-5))
        << name << ", " << where << ", off by " << (have.weights.at(name) - value).abs().max().item<double>();
}

void expect_same(const Result& have, const Result& want, const std::string& where) {
  EXPECT_EQ(have.losses, want.losses) << where;
  for (auto& [name, value] : want.weights)
    EXPECT_TRUE(torch::equal(have.weights.at(name), value)) << name << ", " << where;
}

void expect_training_of_one_rank(const Kind& kind) {
  torch::manual_seed(7);
  const AttendNet first(kind);
  const Result one = trained(first, kind, 1, 1, Strategy::no_shard);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int shards : {1, 2})
    for (const int context : {1, 2, 3, 4}) {
      std::optional<Result> of_cell;
      for (const Strategy strategy : strategies()) {
        const std::string where = fmt::format("{} x {} ranks, {}", shards, context, sherd::name_of(strategy));
        const Result have = trained(first, kind, shards, context, strategy);
        if (!of_cell) {
          expect_close(have, one, where);
          of_cell = have;
        } else {
          expect_same(have, *of_cell, where);
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
}

TEST(TorchContextAttention, TrainsAsOneRank) { expect_training_of_one_rank({}); }

TEST(TorchContextAttention, TrainsGroupedHeadsWithAMaskAsOneRank) {
  expect_training_of_one_rank({.grouped = true, .masked = true});
}

TEST(TorchContextAttention, RecomputedBlocksHaveTheSameBits) {
  torch::manual_seed(7);
  const AttendNet first;
  for (const Strategy strategy : strategies())
    expect_same(trained(first, {.recompute = true}, 2, 2, strategy), trained(first, {}, 2, 2, strategy),
                std::string(sherd::name_of(strategy)));
}

/// Arguments of attention beside the slice.
struct Arguments {
  std::string name;
  int64_t batch = 2, key_heads = kHeads;
  bool causal = false;
  Tensor mask = {};
  torch::ScalarType type = torch::kFloat;
  std::optional<double> scale = {};
};

/// Values and gradients of one attention: result, query, key, value.
std::vector<Tensor> attended(const Arguments& a, const SequenceSlice& slice, const Tensor& mask) {
  std::vector<Tensor> in;
  for (int i = 0; i < 3; ++i)
    in.push_back(
        slice_of(random({a.batch, kSeq, i == 0 ? kHeads : a.key_heads, kHeadWidth}, i).to(a.type), slice)
            .transpose(1, 2)
            .detach()
            .requires_grad_());
  const Tensor out =
      context_attention(in[0], in[1], in[2], slice, mask.defined() ? std::optional(mask) : std::nullopt, 0,
                        a.causal, a.scale, a.key_heads != kHeads);
  const Tensor slope =
      slice_of(random({a.batch, kSeq, kHeads, kHeadWidth}, 3).to(a.type), slice).transpose(1, 2);
  out.backward(slope);
  return {out.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
}

TEST(TorchContextAttention, HeadsHaveTheBitsOfOneRank) {
  const Tensor slopes = mask_of(kHeads).unsqueeze(0), window = slopes[0][0] > -0.35;
  const std::vector<Arguments> all = {
      {.name = "causal", .causal = true},
      {.name = "causal f64", .causal = true, .type = torch::kDouble},
      {.name = "causal bf16", .causal = true, .type = torch::kBFloat16},
      {.name = "whole, one sequence", .batch = 1, .scale = 0.7},
      {.name = "window", .mask = window},
      {.name = "slopes", .mask = slopes},
      {.name = "slopes per sequence", .mask = torch::cat({slopes, 2 * slopes})},
      {.name = "grouped", .key_heads = kHeads / 2, .causal = true},
      {.name = "no sequence", .batch = 0, .causal = true}};
  at::set_num_threads(1);
  for (const Arguments& a : all) {
    const std::vector<Tensor> whole = attended(a, {}, a.mask);
    for (const int ranks : a.key_heads == kHeads ? std::vector{1, 2, 3, 4} : std::vector{2, 3})
      launch(ranks, [&](RankContext& rank) {
        const SequenceSlice slice{ContextParallel::of(mesh_of(rank, ranks)), kSeq};
        const auto have = attended(a, slice, a.mask);
        for (size_t i = 0; i < whole.size(); ++i)
          EXPECT_TRUE(torch::equal(have[i], slice_of(whole[i].transpose(1, 2), slice).transpose(1, 2)))
              << a.name << ", tensor " << i << ", rank " << rank.world->rank() << " of " << ranks;
      });
  }
}

TEST(TorchContextAttention, PagesModuleHasTheResultOfOneRank) {
  torch::manual_seed(7);
  Attention plain(kWidth, kHeads);
  const Tensor x = random({kBatch, kSeq, kWidth}, 5), whole = plain->forward(x, {});
  launch(3, [&](RankContext& rank) {
    const SequenceSlice slice{ContextParallel::of(mesh_of(rank, 3)), kSeq};
    Attention model(kWidth, kHeads);
    copy_weights(*plain, *model);
    EXPECT_TRUE(torch::allclose(model(slice_of(x, slice), slice), slice_of(whole, slice), 1e-5, 1e-6));
  });
}

TEST(TorchContextAttention, MaskHasTheGradientOfTheRanksHeads) {
  const Arguments a{.name = "slopes"};
  const Tensor slopes = random({1, kHeads, kSeq, kSeq}, 9);
  const Tensor whole = slopes.clone().requires_grad_();
  at::set_num_threads(1);
  attended(a, {}, whole);
  launch(3, [&](RankContext& rank) {
    const SequenceSlice slice{ContextParallel::of(mesh_of(rank, 3)), kSeq};
    const Tensor mask = slopes.clone().requires_grad_();
    attended(a, slice, mask);
    Tensor want = torch::zeros_like(slopes);
    const int64_t first = 4 * rank.world->rank();
    want.slice(1, first, first + 4).copy_(whole.grad().slice(1, first, first + 4));
    EXPECT_TRUE(torch::allclose(mask.grad(), want)) << rank.world->rank();
  });
}

TEST(TorchContextAttention, DropoutDrawsForTheRanksHeads) {
  launch(2, [&](RankContext& rank) {
    const SequenceSlice slice{ContextParallel::of(mesh_of(rank, 2)), kSeq};
    const auto seed = static_cast<uint64_t>(5 + rank.world->rank());
    const Tensor x = random({1, kSeq, kHeads, kHeadWidth}, 4);
    const Tensor here = slice_of(x, slice).transpose(1, 2);
    std::optional<sherd::torch::ThreadGenerator> random_numbers(seed);
    const Tensor have = context_attention(here, here, here, slice, {}, 0.5);
    random_numbers.reset();
    random_numbers.emplace(seed);
    const Tensor own = x.transpose(1, 2).narrow(1, kHeads / 2 * rank.world->rank(), kHeads / 2);
    const Tensor want = at::scaled_dot_product_attention(own, own, own, {}, 0.5);
    EXPECT_TRUE(torch::allclose(have.narrow(1, kHeads / 2 * rank.world->rank(), kHeads / 2),
                                slice_of(want.transpose(1, 2), slice).transpose(1, 2)));
  });
}

TEST(TorchContextAttention, SlicesHaveTheirPositions) {
  launch(3, [&](RankContext& rank) {
    const SequenceSlice slice{ContextParallel::of(mesh_of(rank, 3)), 7};
    const Tensor ids = torch::arange(7).expand({2, 7}), masks = torch::ones({2, 7, 5}, torch::kBool);
    const Tensor here = slice_of(ids, slice);
    EXPECT_EQ(here[1][0].item<int64_t>(), slice.first());
    EXPECT_EQ(here.size(1), rank.world->rank() == 0 ? 3 : 2);
    EXPECT_EQ(slice_of(masks, slice).sizes(), torch::IntArrayRef({2, here.size(1), 5}));
    EXPECT_NE(
        message_of([&] { slice_of(ids.slice(1, 0, 6), slice); }).find("[2, 6], must be [batch, 7, ...]"),
        std::string::npos);
    const SequenceSlice short_one{slice.ranks, 2};
    EXPECT_NE(message_of([&] {
                slice_of(ids.slice(1, 0, 2), short_one);
              }).find("sequences of 2 positions over 3 context-parallel ranks"),
              std::string::npos);
  });
  const Tensor x = torch::ones({2, 3});
  EXPECT_TRUE(slice_of(x, {}).is_same(x));
}

TEST(TorchContextAttention, RefusesWhatItCannotExchange) {
  launch(3, [&](RankContext& rank) {
    const SequenceSlice slice{ContextParallel::of(mesh_of(rank, 3)), 6}, short_one{slice.ranks, 2};
    const auto heads = [](int64_t number, int64_t positions = 2) {
      return torch::ones({1, number, positions, 4});
    };
    const auto refused = [&](const Tensor& q, const Tensor& k, const SequenceSlice& of, const Tensor& mask,
                             const std::string& why) {
      const std::string message = message_of([&] { context_attention(q, k, k, of, mask); });
      EXPECT_NE(message.find(why), std::string::npos) << message;
    };
    refused(heads(6), heads(4), slice, {}, "3 context-parallel ranks do not divide 6 heads and 4 key heads");
    refused(heads(8), heads(8), slice, {}, "3 context-parallel ranks do not divide 8 heads and 8 key heads");
    refused(heads(6, 6), heads(6, 6), slice, {}, "must be [batch, heads, 2, width], this rank's slices");
    refused(heads(6), heads(6), short_one, {}, "sequences of 2 positions over 3 context-parallel ranks");
    refused(heads(6), heads(6), slice, torch::ones({2, 6}),
            "the mask is [2, 6], must broadcast to [batch, 6, 6, 6]");
    refused(heads(6), heads(6), slice, torch::ones({2, 6, 6}), "and the heads of all ranks");
  });
}

TEST(TorchContextAttention, RefusesModelsThatDoNotExchange) {
  torch::manual_seed(7);
  const AttendNet first;
  launch(4, [&](RankContext& rank) {
    const sherd::DeviceMesh mesh = mesh_of(rank, 2);
    const ContextParallel ranks = ContextParallel::of(mesh);
    for (const Strategy strategy : strategies()) {
      AttendNet plain = sharded_net(first, {.exchanges = false}, mesh, strategy);
      const Tensor loss = loss_of(plain, tokens(), ranks);
      const std::string message = message_of([&] { loss.backward(); });
      EXPECT_NE(message.find(
                    "the 2 ranks of mesh dimension 'context' share sequences, but no attention of this step "
                    "has exchanged heads over them"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("call sherd::torch::context_attention()"), std::string::npos) << message;
    }
    AttendNet model = sharded_net(first, {}, mesh, Strategy::optim_grads_params);
    const std::string message = message_of([&] { loss_of(model, tokens(), {}); });
    EXPECT_NE(message.find("2 ranks share the sequences of unit 'blocks.0'"), std::string::npos) << message;
    EXPECT_NE(message.find("but the slice has 1"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace torch_test::context
