// Arrangements: the layouts that the runtime makes, evenness, and the buffers of whole parameters.
#include "layout/arrangement.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include <sherd/base/error.h>

#include "layout/layout_summary.h"
#include "programs/sherd/models.h"
#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::tools {
namespace {

constexpr auto kMuon = Algorithm::muon, kAdamW = Algorithm::adamw;

Arrangement arrange(std::vector<ParamEntry> model, int world, const std::string& policy, int64_t bucket = 0) {
  return Arrangement::make(std::move(model),
                           {.world = world, .layout = parse_layout(policy), .bucket_elements = bucket});
}

std::vector<std::string> names(const Arrangement& a) {
  std::vector<std::string> all;
  for (auto& b : a.buffers) all.push_back(b.name);
  return all;
}

TEST(Arrangement, OneBufferForEachUnitAndDtypeInModelOrder) {
  std::vector<ParamEntry> model = transformer(2, 8, 24, 32);
  model[1].dtype = DType::f32;  // layers.0.norm1
  const Arrangement a = arrange(model, 4, "ragged");
  EXPECT_THAT(names(a),
              ::testing::ElementsAre("root/bf16", "layers.0/f32", "layers.0/bf16", "layers.1/bf16"));
  EXPECT_EQ(a.buffers[0].buckets[0].params, (std::vector<int>{0, 15}));
}

TEST(Arrangement, WholeParamKeepsMatricesTogetherAndCutsTheRest) {
  const Arrangement a = arrange(transformer(2, 64, 192, 512), 3, "whole_param", 1);
  EXPECT_THAT(names(a),
              ::testing::ElementsAre("whole_param/bf16", "root/bf16", "layers.0/bf16", "layers.1/bf16"));
  const Buffer& whole = a.buffers[0];
  EXPECT_GT(whole.buckets.size(), 1u);
  int64_t at = 0;
  for (auto& b : whole.buckets) {
    EXPECT_EQ(b.start, at);
    at += b.layout.buffer_elements();
    EXPECT_EQ(b.layout.policy(), LayoutPolicy::whole_param);
    for (int i : b.params) EXPECT_EQ(a.model[i].optimizer, kMuon);
  }
  EXPECT_EQ(at, whole.elements);
  for (size_t i = 0; i < a.model.size(); ++i) {
    const ParamPlace& place = a.places[i];
    EXPECT_EQ(a.bucket_of(place).params[place.param], static_cast<int>(i));
    EXPECT_EQ(place.buffer == 0, a.model[i].optimizer == kMuon);
  }
  EXPECT_EQ(a.bucket_of(a.places[0]).layout.policy(), LayoutPolicy::ragged);  // the tied embedding is AdamW's
}

TEST(Arrangement, ATiedMatrixOfMuonSitsAloneAndDtypesHaveBuffersOfTheirOwn) {
  std::vector<ParamEntry> model = {entry("a", {64, 64}, kMuon, "u"), entry("t", {64, 64}, kMuon, "u"),
                                   entry("b", {64, 64}, kMuon, "u"), entry("c", {64, 64}, kMuon, "u")};
  model[1].tied = true;
  model[3].dtype = DType::f32;
  const Arrangement a = arrange(model, 2, "whole_param:ping_pong");
  EXPECT_THAT(names(a), ::testing::ElementsAre("whole_param/bf16", "whole_param/f32"));
  ASSERT_EQ(a.buffers[0].buckets.size(), 3u);
  EXPECT_EQ(a.buffers[0].buckets[1].params, std::vector<int>{1});
  EXPECT_EQ(a.buffers[0].padding, 3 * 64 * 64);
}

TEST(Arrangement, UnitsAreLaidOutAsTheRuntimeDoes) {
  std::vector<ParamEntry> model;
  std::vector<std::vector<uint64_t>> prints;  // per policy, of the runtime's groups in unit order, root last
  const std::vector<LayoutPolicy> policies = {LayoutPolicy::ragged, LayoutPolicy::even_rows};
  for (LayoutPolicy policy : policies) {
    prints.emplace_back();
    sherd::test::launch(3, [&](RankContext& rank) {
      sherd::test::ToyModel toy(13, 29, 3);
      const Routing routing = route(toy);
      const DeviceMesh mesh(rank.world, {{"shard", 3}});
      for (auto& b : toy.blocks_) fully_shard(*b, mesh, {.layout = policy});
      fully_shard(toy, mesh, {.layout = policy});
      if (rank.world->rank() != 0) return;
      for (ParamGroup* g : runtime_of(toy).groups()) prints.back().push_back(g->layout().fingerprint());
      model.clear();
      for (auto& r : routing.routes)
        model.push_back(entry(r.name, r.param.shape(), r.algorithm, r.param.group().unit()));
    });
  }
  for (size_t k = 0; k < policies.size(); ++k) {
    const Arrangement a = arrange(model, 3, name_of(policies[k]));
    std::vector<uint64_t> got;
    for (size_t b = 1; b < a.buffers.size(); ++b) got.push_back(a.buffers[b].buckets[0].layout.fingerprint());
    got.push_back(a.buffers[0].buckets[0].layout.fingerprint());  // the root's parameters are listed first
    EXPECT_EQ(got, prints[k]) << name_of(policies[k]);
  }
}

// Parameters of one unit, by their full names; nothing is computed.
struct Described : ModuleBase {
  explicit Described(const std::vector<ParamEntry>& model) {
    for (auto& p : model) {
      Parameter added = param(p.name, p.shape, constant(0));
      added.set_cut(p.optimizer == kMuon ? CutClass::row : CutClass::element);
      if (!p.blocks.empty()) added.set_row_blocks(p.blocks);
      if (p.tied) tie(p.name + " again", added);
    }
  }
};

std::vector<std::vector<ParamEntry>> models_of_all_kinds() {
  const auto root = [](std::vector<ParamEntry> model) {
    for (auto& p : model) {
      p.unit = "root";
      p.dtype = DType::f32;
    }
    return model;
  };
  const auto e = [](const char* name, Shape shape, Algorithm a, std::vector<int64_t> blocks = {}) {
    return entry(name, std::move(shape), a, "root", std::move(blocks));
  };
  return {
      root(transformer(3, 16, 48, 64)),
      root({e("embed", {64, 16}, kAdamW), e("0.qkv", {32, 16}, kMuon, {16, 8, 8}), e("0.o", {16, 16}, kMuon),
            e("1.qkv", {32, 16}, kMuon, {16, 8, 8}), e("1.o", {16, 16}, kMuon), e("1.mlp", {64, 16}, kMuon)}),
      // The stack without blocks has fewer elements than the other stack.
      root({e("router", {4, 16}, kAdamW), e("experts.fc", {4, 24, 16}, kMuon),
            e("experts.bias", {4, 24}, kAdamW), e("experts.gate_up", {4, 48, 16}, kMuon, {24, 24}),
            e("experts.out", {4, 16, 24}, kMuon), e("q", {16, 16}, kMuon), e("dense", {40, 16}, kMuon)}),
      root({e("conv", {16, 8, 3}, kAdamW), e("conv2", {8, 4, 3, 3}, kAdamW), e("fc", {10, 16}, kMuon),
            e("proj", {9, 8}, kMuon), e("empty", {0, 8}, kMuon)}),
  };
}

TEST(Arrangement, CostsAndLayoutsAreTheRuntimesForModelsOfAllKinds) {
  for (const auto& model : models_of_all_kinds()) {
    for (const char* policy : {"ragged", "even_rows", "whole_param", "whole_param:ping_pong"}) {
      SCOPED_TRACE(model.front().name + " " + policy);
      const Arrangement a =
          Arrangement::make(model, {.world = 3, .layout = parse_layout(policy), .per_unit = true});
      std::map<std::string, const ShardLayout*> planned;
      for (size_t i = 0; i < model.size(); ++i) planned[model[i].name] = &a.bucket_of(a.places[i]).layout;
      sherd::test::launch(3, [&](RankContext& rank) {
        Described described(model);
        const LayoutChoice choice = parse_layout(policy);
        fully_shard(described, DeviceMesh(rank.world, {{"shard", 3}}),
                    {.layout = choice.policy, .packing = choice.packing});
        if (rank.world->rank() != 0) return;
        for (ParamGroup* g : runtime_of(described).groups()) {
          const ShardLayout& ran = g->layout();
          const ShardLayout& plan = *planned.at(ran.params().front().name);
          EXPECT_EQ(plan.fingerprint(), ran.fingerprint());
          EXPECT_EQ(plan.slice(), ran.slice());
          EXPECT_EQ(plan.rank_cost(), ran.rank_cost());
          ASSERT_EQ(plan.params().size(), ran.params().size());
          for (int p = 0; p < static_cast<int>(ran.params().size()); ++p) {
            SCOPED_TRACE(ran.params()[p].name);
            EXPECT_EQ(packing_cost(plan.params()[p]), packing_cost(ran.params()[p]));
            EXPECT_EQ(plan.full_range(ParamId(p)).begin.value, ran.full_range(ParamId(p)).begin.value);
            for (int r = 0; r < 3; ++r)
              EXPECT_EQ(plan.piece(ParamId(p), RankId(r)).size(), ran.piece(ParamId(p), RankId(r)).size());
          }
        }
      });
    }
  }
}

// Runs body(runtime) on rank 0 of three, with transformer(3, ...) as modules.
void as_modules(const std::vector<ParamEntry>& model, const FullyShardOptions& options,
                const std::function<void(ShardRuntime&)>& body) {
  sherd::test::launch(3, [&](RankContext& rank) {
    struct Part : Described {
      using Described::Described;
      using ModuleBase::child;
    };
    struct Folder : Part {
      Folder() : Part(std::vector<ParamEntry>()) {}
    } folder;
    std::vector<std::unique_ptr<Part>>
        layers;  // parameters have their names of the model as those of modules
    Part root(std::vector<ParamEntry>{model.front(), model.back()});
    const DeviceMesh mesh(rank.world, {{"shard", 3}});
    for (int i = 0; i < 3; ++i) {
      const std::string unit = "layers." + std::to_string(i);
      std::vector<ParamEntry> own;
      for (ParamEntry p : model) {
        if (p.unit != unit) continue;
        p.name.erase(0, unit.size() + 1);
        own.push_back(p);
      }
      layers.push_back(std::make_unique<Part>(own));
      folder.child(std::to_string(i), *layers.back());
    }
    root.child("layers", folder);
    for (auto& l : layers) fully_shard(*l, mesh, options);
    fully_shard(root, mesh, options);
    if (rank.world->rank() == 0) body(runtime_of(root));
  });
}

TEST(Arrangement, UnitsThatArePackedByThemselvesAreTheRuntimes) {
  const std::vector<ParamEntry> model = transformer(3, 16, 48, 64);
  for (const char* policy : {"whole_param", "whole_param:size_match", "whole_param:ping_pong"}) {
    const LayoutChoice choice = parse_layout(policy);
    const Arrangement a = Arrangement::make(model, {.world = 3, .layout = choice, .per_unit = true});
    EXPECT_THAT(names(a),
                ::testing::ElementsAre("root/bf16", "layers.0/bf16, whole matrices", "layers.0/bf16",
                                       "layers.1/bf16, whole matrices", "layers.1/bf16",
                                       "layers.2/bf16, whole matrices", "layers.2/bf16"));
    std::map<std::string, uint64_t> planned;  // by first parameter
    for (auto& b : a.buffers)
      planned[b.buckets[0].layout.params().front().name] = b.buckets[0].layout.fingerprint();
    as_modules(model, {.layout = choice.policy, .packing = choice.packing}, [&](ShardRuntime& runtime) {
      for (ParamGroup* g : runtime.groups())
        EXPECT_EQ(planned.at(g->layout().params().front().name), g->layout().fingerprint()) << policy;
    });
  }
}

TEST(Arrangement, BucketsThatSpanUnitsAreTheRuntimes) {
  const std::vector<ParamEntry> model = transformer(3, 16, 48, 64);
  for (const char* policy : {"whole_param", "whole_param:size_match", "whole_param:ping_pong"}) {
    for (const int64_t size : {0, 1, 5000}) {
      const LayoutChoice choice = parse_layout(policy);
      const Arrangement a = arrange(model, 3, policy, size);
      ASSERT_EQ(a.buffers[0].name, "whole_param/bf16");
      std::vector<uint64_t> units, buckets;  // the root's first, as it is listed
      for (size_t b = 1; b < a.buffers.size(); ++b)
        units.push_back(a.buffers[b].buckets[0].layout.fingerprint());
      for (const Bucket& b : a.buffers[0].buckets) buckets.push_back(b.layout.fingerprint());
      for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads}) {
        const FullyShardOptions o = {.strategy = strategy,
                                     .layout = choice.policy,
                                     .packing = choice.packing,
                                     .bucket_elements = size};
        as_modules(model, o, [&](ShardRuntime& runtime) {
          std::vector<uint64_t> got;
          for (ParamGroup* g : runtime.groups()) got.push_back(g->layout().fingerprint());
          std::vector<uint64_t> want(units.begin() + 1, units.end());
          want.push_back(units.front());
          want.insert(want.end(), buckets.begin(), buckets.end());
          EXPECT_EQ(got, want) << policy << ", buckets of " << size;
          EXPECT_EQ(runtime.plan().buckets.size(), buckets.size());
        });
      }
    }
  }
}

TEST(Arrangement, HoldersAreTheRanksWithAPiece) {
  for (const char* policy : {"ragged", "even_rows", "whole_param"}) {
    for (int world : {1, 2, 5, 7, 64}) {
      const Arrangement a = arrange(transformer(1, 8, 24, 33), world, policy);
      for (auto& place : a.places) {
        const ShardLayout& layout = a.bucket_of(place).layout;
        std::vector<int64_t> held(static_cast<size_t>(world));
        for_holders(layout, place.param, [&](int first, int end, int64_t n) {
          for (int r = first; r < end; ++r) held[r] += n;
        });
        for (int r = 0; r < world; ++r)
          ASSERT_EQ(held[r], layout.piece(ParamId(place.param), RankId(r)).size());
      }
    }
  }
}

TEST(Arrangement, OptimizerStateOfA32LayerTransformerIsEven) {
  for (int world : {8, 64, 256, 1024}) {
    const RankTotals t = rank_totals(arrange(transformer(32, 4096, 11008, 128000), world, "ragged"));
    EXPECT_LE(t.state_bytes.evenness(), 1.03) << world;
    const double total = 8.0 * (128000 + 65) * 4096 + 4.0 * 32 * (4.0 * 4096 * 4096 + 3.0 * 11008 * 4096);
    EXPECT_DOUBLE_EQ(t.state_bytes.mean, total / world);
  }
}

TEST(Arrangement, ATrillionParametersOn4096RanksTakeSeconds) {
  // 61 layers with 384 experts of three matrices each. Generous limit: sanitizers, busy machines.
  std::vector<ParamEntry> model = transformer(61, 7168, 2048, 163840);
  for (int i = 0; i < 61; ++i) {
    const std::string unit = "layers." + std::to_string(i);
    for (int e = 0; e < 384; ++e)
      for (const char* name : {".gate", ".up", ".down"})
        model.push_back(entry(unit + "." + std::to_string(e) + name, {2048, 7168}, kMuon, unit));
  }
  for (const char* policy : {"ragged", "whole_param"}) {
    const auto start = std::chrono::steady_clock::now();
    const Arrangement a = arrange(model, 4096, policy);
    EXPECT_THAT(summary(a), HasSubstr("Muon plan: 70699 matrices"));
    EXPECT_DOUBLE_EQ(a.plan.redundancy, 1);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60) << policy;
  }
}

TEST(Arrangement, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { arrange({entry("w", {int64_t{1} << 58}, kAdamW, "u")}, 8, "ragged"); }),
              HasSubstr("on 8 ranks at most 144115188075855871"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                arrange({entry("w", {1 << 30, 1, 1}, kMuon, "u")}, 8, "ragged");
              }),
              HasSubstr("'w' of shape [1073741824, 1, 1] Muon has more than 1048576 matrices"));
}

TEST(Arrangement, BuffersThatTogetherPass64BitsAreRefused) {
  std::vector<ParamEntry> model;
  for (int i = 0; i < 200; ++i) {
    model.push_back(entry("w" + std::to_string(i), {4, 4}, kMuon, "u" + std::to_string(i)));
    model.back().tied = true;
  }
  for (const char* policy : {"ragged", "even_rows", "whole_param"})
    for (int64_t align : {int64_t{1} << 48, int64_t{1} << 62})
      EXPECT_THAT(message_of<InvalidArgument>([&] {
                    Arrangement::make(model,
                                      {.world = 1 << 10, .layout = parse_layout(policy), .align = align});
                  }),
                  ::testing::AllOf(HasSubstr("on 1024 ranks"), HasSubstr("more elements than 64 bits count"),
                                   HasSubstr("use fewer ranks, a smaller align")))
          << policy;
}

TEST(Summary, ListsTheContent) {
  const std::string text = summary(arrange(transformer(40, 64, 192, 500), 4, "whole_param:size_match"));
  for (const char* part :
       {"whole_param:size_match over 4 ranks: AdamW 37184 elements in 82 parameters", "whole_param/bf16",
        "... and 18 more", "optimizer state", "Muon plan: 280 matrices",
        "(busiest rank over the least possible)", "fingerprint"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(summary(arrange({entry("b", {5}, kAdamW, "u")}, 2, "ragged")), HasSubstr("no matrices"));
}

TEST(Summary, ControlCharactersOfNamesAreEscaped) {
  const std::string text =
      summary(arrange({entry("b", {5}, kAdamW, "u\n\x1b[2J\x7f\xc2\x9b\xc3\xa9")}, 2, "ragged"));
  EXPECT_THAT(text, HasSubstr("  u\\u000a\\u001b[2J\\u007f\\u009b\xc3\xa9/bf16 "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            std::count_if(text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }));
}

TEST(Summary, NothingButPaddingHasNoPercentage) {
  const std::string text = summary(arrange({entry("b", {0}, kAdamW, "u")}, 2, "ragged"));
  EXPECT_THAT(text, HasSubstr("            -         0\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("%")));
}

TEST(Summary, ColumnsStayApartWhateverTheirWidth) {
  ArrangeOptions options{.world = 1 << 10, .layout = parse_layout("ragged"), .align = int64_t{1} << 48};
  const std::string text = summary(Arrangement::make({entry("b", {5}, kAdamW, "u")}, options));
  EXPECT_THAT(text, HasSubstr(" 281474976710656 288230376151711744 "));
}

}  // namespace
}  // namespace sherd::tools
