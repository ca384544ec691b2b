// QK-clip: the rows of heads whose logits are too large shrink, the same on every mesh.

#include <sherd/optim/qk_clip.h>

#include <cmath>
#include <map>
#include <set>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 3, kWidth = 5;
constexpr double kTau = 10;

/// Two attentions: the projection of one is fused, with a bias; the other's are apart.
struct Attentions : GivenGradients {
  Parameter qkv = add("qkv.weight", {(kHeads + 2 * kKvHeads) * kDim, kWidth}),
            bias = add("qkv.bias", {(kHeads + 2 * kKvHeads) * kDim}),
            q = add("q.weight", {kHeads * kDim, kWidth}), k = add("k.weight", {kHeads * kDim, kWidth}),
            q_b = add("q_b.weight", {kHeads * kDim, kWidth}), kv_b = add("kv_b.weight", {kHeads * 5, kWidth}),
            other = add("other.weight", {6, 4});
  std::shared_ptr<LogitMaxima> fused =
      std::make_shared<LogitMaxima>(AttentionHeads::fused("fused", qkv, bias, kHeads, kKvHeads, kDim));
  std::shared_ptr<LogitMaxima> apart = std::make_shared<LogitMaxima>(AttentionHeads{.name = "apart",
                                                                                    .queries = {{q, 0}},
                                                                                    .keys = {{k, 0}},
                                                                                    .heads = kHeads,
                                                                                    .kv_heads = kHeads,
                                                                                    .head_dim = kDim});
  /// Latent attention: two rows of a head of q_b without positions and a rotary one; two of kv_b are keys, three values.
  std::shared_ptr<LogitMaxima> latent =
      std::make_shared<LogitMaxima>(AttentionHeads{.name = "latent",
                                                   .queries = {{q_b, 0, 2, kDim}},
                                                   .keys = {{kv_b, 0, 2, 5}},
                                                   .alone = {{q_b, 2, 1, kDim}},
                                                   .heads = kHeads,
                                                   .kv_heads = kHeads,
                                                   .head_dim = kDim});
  std::vector<std::shared_ptr<LogitMaxima>> all() const { return {fused, apart, latent}; }
  /// Maxima that forwards of two microbatches would leave: the largest of head h is on some rank.
  void raise(Device& device, int rank, int ranks, int number) {
    for (const auto& m : all()) {
      std::vector<float> values;
      for (int h = 0; h < kHeads; ++h)
        values.push_back(h % ranks == rank ? maximum(h, number) : 0.5f * static_cast<float>(h));
      const Tensor& to = m->values(device);
      ops::copy_from_host(device.compute(), to, values.data(), to.nbytes());
      device.compute().synchronize();
    }
  }
  static float maximum(int head, int number) {
    return head == 1 ? 3.0f : 17.0f + 9.0f * static_cast<float>(head + number);
  }
};

using Weights = std::map<std::string, std::vector<float>>;

Weights train_clipped(int ranks, int replicas, const FullyShardOptions& o, bool clips, bool spoil = false,
                      const std::set<std::string>& frozen = {}) {
  Weights result;
  launch(ranks, [&](RankContext& r) {
    Attentions model;
    const Routing routing = route(model);
    const DeviceMesh mesh(r.world, {{"replicate", replicas}, {"shard", ranks / replicas}});
    fully_shard(model, mesh, o);
    Optimizer optimizer(model, routing, {.weight_decay = 0.1});
    if (clips)
      optimizer.after_update(std::make_shared<QkClip>(model, model.all(), QkClipOptions{.tau = kTau}));
    for (auto& [name, p] : model.named_parameters())
      if (frozen.contains(name)) runtime_of(model).set_frozen({p}, true);
    for (int step = 0; step < 2; ++step) {
      model.raise(*r.device, r.world->rank(), ranks, step);
      model.train(optimizer, 0.125, spoil);
      if (clips) {
        EXPECT_EQ(ops::to_floats(r.device->compute(), model.fused->values(*r.device)),
                  std::vector<float>(kHeads, 0));
      }
    }
    Unit& unit = *runtime_of(model).units().back();
    unit.unshard();
    unit.wait();
    for (auto& [name, p] : model.named_parameters()) {
      const auto w = ops::to_floats(r.device->compute(), p.dtensor().full_tensor(r.device->compute()));
      const auto used = ops::to_floats(r.device->compute(), p.data());
      for (size_t i = 0; i < w.size(); ++i)
        EXPECT_EQ(used[i], o.compute_dtype == DType::bf16 ? float(bf16(w[i])) : w[i]) << name << " " << i;
      if (r.world->rank() == 0) result[name] = w;
    }
    unit.reshard();
  });
  return result;
}

/// One step's clip of whole weights, plainly.
void clip(Weights& w, int step) {
  const auto gamma = [&](int h) {
    const float s = Attentions::maximum(h, step), tau = static_cast<float>(kTau);
    return s > tau ? tau / s : 1.0f;
  };
  const auto scale = [&](const std::string& name, int width, int first_row, int head, float factor) {
    for (int row = first_row + head * kDim; row < first_row + (head + 1) * kDim; ++row)
      for (int c = 0; c < width; ++c) w.at(name)[static_cast<size_t>(row * width + c)] *= factor;
  };
  for (int h = 0; h < kHeads; ++h) {
    const int group = kHeads / kKvHeads;
    float least = 1;
    for (int other = h / group * group; other < (h / group + 1) * group; ++other)
      least = std::min(least, gamma(other));
    const float key = std::sqrt(least), own = std::sqrt(gamma(h));
    for (const auto& [name, width] : {std::pair("qkv.weight", kWidth), std::pair("qkv.bias", 1)}) {
      scale(name, width, 0, h, gamma(h) / key);
      if (h % group == 0) scale(name, width, kHeads * kDim, h / group, key);
    }
    scale("q.weight", kWidth, 0, h, gamma(h) / own);
    scale("k.weight", kWidth, 0, h, own);
    const auto rows = [&](const std::string& name, int first, int count, float factor) {
      for (int i = first * kWidth; i < (first + count) * kWidth; ++i)
        w.at(name)[static_cast<size_t>(i)] *= factor;
    };
    rows("q_b.weight", h * kDim, kDim, gamma(h) / own);
    rows("q_b.weight", h * kDim + 2, 1, own);
    rows("kv_b.weight", h * 5, 2, own);
  }
}

// Gradients do not follow from weights here, so that one plain step is: an update, then the clip.
TEST(QkClip, IsThePlainComputationInBitsOnEveryMesh) {
  launch(1, [](RankContext& r) {
    // With the first step's clip alone: the weights behind one update, clipped by hand.
    Attentions plain, clipped;
    for (Attentions* model : {&plain, &clipped}) {
      const Routing routing = route(*model);
      fully_shard(*model, mesh_of(r));
      Optimizer optimizer(*model, routing, {.weight_decay = 0.1});
      if (model == &clipped)
        optimizer.after_update(std::make_shared<QkClip>(*model, model->all(), QkClipOptions{.tau = kTau}));
      model->raise(*r.device, 0, 1, 0);
      model->train(optimizer, 0.125);
    }
    Weights want, got;
    for (auto& [name, p] : plain.named_parameters())
      want[name] = ops::to_floats(r.device->compute(), p.shard());
    for (auto& [name, p] : clipped.named_parameters())
      got[name] = ops::to_floats(r.device->compute(), p.shard());
    clip(want, 0);
    EXPECT_EQ(got, want);
  });
  std::map<int, Weights> first;  // by whether averages are exact
  for (const int ranks : {1, 3, 4}) {
    for (const Strategy strategy : kEveryStrategy) {
      for (const int replicas : {1, 2}) {
        for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
          if (ranks % replicas != 0) continue;
          const FullyShardOptions o{.strategy = strategy, .layout = layout};
          const Weights got = train_clipped(ranks, replicas, o, true);
          const auto [it, fresh] = first.try_emplace(ranks == 3, got);
          EXPECT_EQ(got, it->second) << ranks << " " << name_of(strategy) << " " << replicas;
          if (!fresh) continue;
          const Weights without = train_clipped(ranks, replicas, o, false);
          EXPECT_NE(got.at("qkv.weight"), without.at("qkv.weight"));
          EXPECT_EQ(got.at("other.weight"), without.at("other.weight"));
          const auto values = [](const Weights& w) {  // v's rows are left alone
            const auto& all = w.at("qkv.weight");
            return std::vector<float>(all.begin() + (kHeads + kKvHeads) * kDim * kWidth, all.end());
          };
          EXPECT_EQ(values(got), values(without));
        }
      }
    }
  }
}

TEST(QkClip, ModelsComputeWithTheClippedWeightsRounded) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
    const FullyShardOptions o{.strategy = strategy, .compute_dtype = DType::bf16};
    train_clipped(4, 1, o, true);
  }
}

TEST(QkClip, SkippedStepsScaleNothing) {
  FullyShardOptions o;
  EXPECT_EQ(train_clipped(4, 1, o, true, true), train_clipped(4, 1, o, false, true));
}

TEST(QkClip, ProjectionsThatAreFrozenAtPresentKeepTheirBits) {
  const std::set<std::string> frozen = {"k.weight", "qkv.bias", "q_b.weight"};
  const Weights clipped = train_clipped(2, 1, {}, true, false, frozen), all = train_clipped(2, 1, {}, true),
                never = train_clipped(2, 1, {}, false, false, frozen);
  for (auto& [name, values] : clipped)
    EXPECT_EQ(values, (frozen.contains(name) ? never : all).at(name)) << name;
  EXPECT_NE(never.at("k.weight"), all.at("k.weight"));
}

/// Twelve query heads that are cut over the tensor-parallel ranks, while few key heads are whole on each. With three of
/// them, the query heads of a rank do not share theirs evenly.
struct FewKeys : GivenGradients {
  static constexpr int kQueries = 12;
  FewKeys(int tp, int index, int keys, bool bias_cut = true) : heads(kQueries / tp) {
    q = add("q.weight", {heads * kDim, kWidth});
    q_bias = add("q.bias", {heads * kDim});
    k = add("k.weight", {keys * kDim, kWidth});
    k_bias = add("k.bias", {keys * kDim});
    if (tp > 1) q.set_tensor_shard({"tp", 0, tp, index});
    if (tp > 1 && bias_cut) q_bias.set_tensor_shard({"tp", 0, tp, index});
    const int group = kQueries / keys, first = index * heads / group,
              used = ((index + 1) * heads - 1) / group + 1 - first;
    std::vector<int> key_of;
    for (int h = 0; tp > 1 && keys == 3 && h < heads; ++h)
      key_of.push_back((index * heads + h) / group - first);
    maxima = std::make_shared<LogitMaxima>(AttentionHeads{.name = "few keys",
                                                          .queries = {{q, 0}, {q_bias, 0}},
                                                          .keys = {{k, first * kDim}, {k_bias, first * kDim}},
                                                          .heads = heads,
                                                          .kv_heads = used,
                                                          .head_dim = kDim,
                                                          .key_of = key_of});
  }
  int heads;
  Parameter q, q_bias, k, k_bias;
  std::shared_ptr<LogitMaxima> maxima;
};

/// Whole keys as each rank has them, after two steps whose gradients are zero.
std::vector<std::vector<float>> clipped_keys(int tp, int keys, Strategy strategy,
                                             std::vector<float>& queries) {
  std::vector<std::vector<float>> all(static_cast<size_t>(2 * tp));
  std::vector<std::vector<float>> of_queries(all.size());
  launch(2 * tp, [&](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"shard", 2}, {"tp", tp}});
    FewKeys model(tp, mesh.coordinate("tp"), keys);
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, mesh, {.strategy = strategy});
    Optimizer optimizer(model, routing, {});
    optimizer.after_update(
        std::make_shared<QkClip>(model, std::vector{model.maxima}, QkClipOptions{.tau = kTau}));
    for (int step = 0; step < 2; ++step) {
      std::vector<float> values;  // of head h of all, the largest on data-parallel rank h % 2
      for (int h = 0; h < model.heads; ++h) {
        const int head = mesh.coordinate("tp") * model.heads + h;
        values.push_back(head % 2 == mesh.coordinate("shard") ? Attentions::maximum(head, step) : 0.5f);
      }
      const Tensor& to = model.maxima->values(*r.device);
      ops::copy_from_host(r.device->compute(), to, values.data(), to.nbytes());
      model.train(optimizer, 0);
    }
    const auto whole = [&](const Parameter& p) {
      return ops::to_floats(r.device->compute(), p.dtensor().full_tensor(r.device->compute()));
    };
    const auto rank = static_cast<size_t>(r.world->rank());
    all[rank] = whole(model.k);
    for (const float x : whole(model.k_bias)) all[rank].push_back(x);
    of_queries[rank] = whole(model.q);
  });
  queries.clear();
  for (int t = 0; t < tp; ++t)
    queries.insert(queries.end(), of_queries[static_cast<size_t>(t)].begin(),
                   of_queries[static_cast<size_t>(t)].end());
  return all;
}

TEST(QkClip, KeyHeadsThatTensorParallelRanksHoldWholeStayEqualAndAreThoseOfOneRank) {
  for (const int keys : {1, 2, 3}) {
    std::vector<float> want_queries, queries;
    const std::vector<float> want = clipped_keys(1, keys, Strategy::no_shard, want_queries).front();
    for (const int tp : {2, 4})
      for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
        SCOPED_TRACE(fmt::format("{} key heads, tp {}, {}", keys, tp, name_of(strategy)));
        for (const auto& got : clipped_keys(tp, keys, strategy, queries)) EXPECT_EQ(got, want);
        EXPECT_EQ(queries, want_queries);
      }
  }
}

TEST(QkClipMisuse, HeadsThatCannotBeAreAllNamed) {
  Attentions model;
  const AttentionHeads bad{.name = "layer",
                           .queries = {{model.q, 9}},
                           .keys = {{}},
                           .heads = 4,
                           .kv_heads = 3,
                           .head_dim = 3,
                           .normalised = true};
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { LogitMaxima m(bad); }),
      AllOf(HasSubstr("attention 'layer'"), HasSubstr("normalised"), HasSubstr("4 query heads, 3 key heads"),
            HasSubstr("'q.weight' of shape [12, 5] has no rows [9, 21)"), HasSubstr("undefined parameter")));
  EXPECT_THAT(message_of<InvalidArgument>([] { LogitMaxima m({}); }), HasSubstr("no parameters"));
  AttentionHeads uneven{.queries = {{model.q, 0}},
                        .keys = {{model.k, 0}},
                        .heads = 3,
                        .kv_heads = 2,
                        .head_dim = kDim,
                        .key_of = {0, 1, 2}};
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { LogitMaxima m(uneven); }),
      HasSubstr("key_of is [0, 1, 2]: it must have one of the 2 key heads for each of 3 query heads"));
  launch(1, [&](RankContext& r) {
    Attentions whole;
    uneven = {.name = "whole",
              .queries = {{whole.q, 0}},
              .keys = {{whole.k, 0}},
              .heads = 3,
              .kv_heads = 2,
              .head_dim = kDim,
              .key_of = {0, 0, 1}};
    fully_shard(whole, mesh_of(r));
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { QkClip(whole, {std::make_shared<LogitMaxima>(uneven)}); }),
        HasSubstr("attention 'whole' gives key_of, but its key heads are not whole on several ranks"));
  });
}

TEST(QkClipMisuse, QueriesOfWhichAPartAloneIsCutAreRefused) {
  launch(2, [](RankContext& r) {
    FewKeys model(2, r.world->rank(), 1, /*bias_cut=*/false);
    fully_shard(model, DeviceMesh(r.world, {{"shard", 1}, {"tp", 2}}));
    EXPECT_THAT(message_of<InvalidArgument>([&] { QkClip(model, {model.maxima}); }),
                HasSubstr("'q.weight' is cut over tp, and 'q.bias' is whole"));
  });
}

TEST(QkClipMisuse, ModelsAndOptionsThatCannotBeAreAllNamed) {
  launch(2, [](RankContext& r) {
    Attentions model, other;
    const Routing routing = route(model);
    model.k.freeze();
    const Routing unfrozen = route(model);
    fully_shard(model, mesh_of(r));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  QkClip(model, {model.apart, other.fused}, {.tau = -1});
                }),
                AllOf(HasSubstr("tau -1"), HasSubstr("'k.weight' of attention 'apart' is frozen"),
                      HasSubstr("'qkv.weight' of attention 'fused' is not of this model")));
    const auto tied = std::make_shared<LogitMaxima>(AttentionHeads{.name = "tied",
                                                                   .queries = {{model.q, 3}},
                                                                   .keys = {{model.q, 0}},
                                                                   .heads = 1,
                                                                   .kv_heads = 1,
                                                                   .head_dim = kDim});
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  QkClip(model, {model.fused, model.apart, tied});
                }),
                AllOf(HasSubstr("rows [0, 3) of parameter 'q.weight' make heads of attention"),
                      HasSubstr("rows [3, 6) of parameter 'q.weight'"), HasSubstr("'tied'")));
    EXPECT_THAT(message_of<InvalidArgument>([&] { QkClip(model, {}); }),
                HasSubstr("the list of layers is empty"));
    EXPECT_THROW(QkClip(model, {model.fused}, {.tau = 1.0 + r.world->rank()}), ShapeMismatch);
    Optimizer half(model, unfrozen.part("^other|^q.weight"), {});
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { half.after_update(std::make_shared<QkClip>(model, std::vector{model.fused})); }),
                HasSubstr("does not update: qkv.weight, qkv.bias"));
  });
}

}  // namespace
}  // namespace sherd::test
