// The same model on other ranks, strategies and dtypes; vocabularies and key heads that the ranks do not
// divide.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "arranged_training.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using nn::ModelDescription;

constexpr int64_t kSeq = 9;

ModelDescription described(const std::string& family) {
  if (family.starts_with("byte_gpt")) return byte_gpt(family.ends_with("experts") ? 4 : 0);
  return GoldenFolder(family).description;
}

TEST(Arrangements, StrategiesAndRecomputationHaveTheSameBits) {
  for (const char* family : {"llama", "qwen3_moe", "deepseek_v3", "glm4_moe", "olmo3", "gemma3_text",
                             "gpt_oss", "mistral_longrope", "byte_gpt", "byte_gpt experts"}) {
    ModelDescription m = described(family);
    if (routes_in_groups(m)) m.mixture.balance = 0.01, m.mixture.bias_speed = 0.01;
    for (const int tp : {1, 2}) {
      Arrangement a{.name = family, .ranks = 4, .tp = tp, .ep = m.mixture.experts > 0 ? 2 : 1};
      a.strategy = Strategy::no_shard;
      const Outcome want = train(m, a);
      for (const Strategy s : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
        a.strategy = s;
        expect_same_bits(train(m, a), want, name_of(s));
      }
      a.recompute = true;
      expect_same_bits(train(m, a), want, "recomputed");
    }
  }
}

// 4 query heads on 2 key heads, 6 on 3 and 4 on 1, for 1 to 6 ranks of tp; vocabularies of which the last
// rank has less, and nothing.
TEST(Arrangements, WhatTensorParallelRanksDoNotDivideIsWholeOutside) {
  struct Case {
    const char* family;
    int tp;
    int64_t vocab;
  };
  for (const Case& c : {Case{"llama", 4, 199},
                        {"llama", 4, 5},
                        {"qwen2", 2, 199},
                        {"qwen2", 6, 7},
                        {"qwen2", 3, 200},
                        {"mistral", 4, 198},
                        {"gpt2", 4, 199},
                        {"byte_gpt", 4, 199},
                        {"qwen3", 4, 5},
                        {"olmo2", 4, 199},
                        {"olmo3", 4, 5}}) {
    ModelDescription m = described(c.family);
    m.vocab = c.vocab;
    m.hidden = 48;
    m.init_std = 0.2f;
    const std::string what =
        std::string(c.family) + ", tp " + std::to_string(c.tp) + ", vocab " + std::to_string(c.vocab);
    expect_near(train(m, {.name = "", .ranks = c.tp, .tp = c.tp}), train(m, {.name = ""}), what.c_str());
  }
}

TEST(Arrangements, ExpertsAndTensorParallelRanksGiveWhatOneRankGives) {
  for (const char* family : {"qwen3_moe", "byte_gpt experts"}) {
    ModelDescription m = described(family);
    m.init_std = 0.2f;
    m.mixture.balance = 0.05;
    // The balancing loss counts the choices of all ranks: with data-parallel ranks the mean over rows is each
    // one's own, which is the same gradient where all have as many.
    const Outcome want = train(m, {.name = "one"});
    for (const Arrangement& a : {Arrangement{.name = "tp 2", .ranks = 2, .tp = 2},
                                 {.name = "ep 2", .ranks = 2, .ep = 2},
                                 {.name = "ep 4", .ranks = 4, .ep = 4},
                                 {.name = "ep 2 of 4, replicas", .ranks = 4, .ep = 2, .replicas = 2},
                                 {.name = "no expert ranks given", .ranks = 4, .default_ep = true},
                                 {.name = "replicas, no expert ranks given",
                                 .ranks = 4,
                                 .strategy = Strategy::optim,
                                 .replicas = 2,
                                 .default_ep = true},
                                 {.name = "tp 2 ep 2", .ranks = 2, .tp = 2, .ep = 2},
                                 {.name = "tp 4 ep 2", .ranks = 4, .tp = 4, .ep = 2},
                                 {.name = "tp 2 ep 4", .ranks = 4, .tp = 2, .ep = 4}})
      expect_near(train(m, a), want, a.name);
  }
}

// Checkpoints and first weights depend on names and their order.
TEST(Arrangements, ParametersOfTheByteGptThatAreCut) {
  for (const int64_t experts : {0, 4})
    launch(2, [&](RankContext& rank) {
      ArrangedModel arranged(rank, byte_gpt(experts), {.name = "tp", .ranks = 2, .tp = 2});
      std::vector<std::string> cut;
      for (auto& [name, p] : arranged.model->named_parameters())
        if (p.tensor_shard() && p.tensor_shard()->mesh_dim == "tp" && !name.starts_with("blocks.1")) {
          cut.push_back(name);
          EXPECT_EQ(p.numel() * 2, numel_of(p.global_shape())) << name;
        }
      std::vector<std::string> want{"head.weight", "blocks.0.qkv.weight", "blocks.0.proj.weight"};
      if (experts == 0) want.insert(want.end(), {"blocks.0.fc.weight", "blocks.0.out.weight"});
      EXPECT_EQ(cut, want);
    });
  std::vector<std::string> block;
  for (auto& [name, p] : causal_model(byte_gpt(4))->named_parameters())
    if (!name.starts_with("blocks.1")) block.push_back(name);
  EXPECT_THAT(block,
              testing::ElementsAre("tok.weight", "pos.weight", "norm.weight", "head.weight",
                                   "blocks.0.norm1.weight", "blocks.0.qkv.weight", "blocks.0.proj.weight",
                                   "blocks.0.norm2.weight", "blocks.0.moe.router.weight",
                                   "blocks.0.moe.experts.fc.weight", "blocks.0.moe.experts.fc.bias",
                                   "blocks.0.moe.experts.out.weight", "blocks.0.moe.experts.out.bias"));
}

// Every third parameter is frozen by set_frozen(), in each of three ways.
TEST(Arrangements, FrozenParametersLeaveTheOthersTheirGradients) {
  for (const char* family : {"gpt2", "qwen3_moe", "deepseek_v3", "olmo2", "gemma3_text", "gpt_oss"})
    for (const bool adapters : {false, true}) {
      const ModelDescription m = described(family);
      if (adapters && m.family == nn::ModelFamily::gpt2) continue;  // which has none
      Arrangement a{.name = family,
                    .ranks = 4,
                    .tp = 2,
                    .ep = m.mixture.experts > 0 ? 2 : 1,
                    .sequence_parallel = true};
      if (adapters) a.lora = {.rank = 2, .alpha = 4, .targets = "attn|attention"};
      launch(a.ranks, [&](RankContext& rank) {
        ArrangedModel arranged(rank, m, a, 5);
        nn::CausalModel& model = *arranged.model;
        arranged.shard();
        ShardRuntime& runtime = runtime_of(model);
        nn::Tape tape;
        const auto gradients = [&] {
          tape.backward(model(tape.input(tokens(*rank.device, m, {2, kSeq}, 2 * arranged.data_rank, 0)),
                              tokens(*rank.device, m, {2, kSeq}, 2 * arranged.data_rank, 1), 0.1f)
                            .objective);
          runtime.wait_gradients();
          std::map<std::string, std::vector<float>> all;
          for (auto& [name, p] : model.named_parameters())
            if (p.trainable() && p.group().grad_final(p.index_in_group()))
              all[name] = ops::to_floats(rank.device->compute(), p.grad_shard());
          zero_grad(model);
          return all;
        };
        const auto want = gradients();
        for (size_t which = 0; which < 3; ++which) {
          std::vector<Parameter> frozen;
          size_t i = which;
          for (auto& [name, p] : model.named_parameters())
            if (p.trainable() && i++ % 3 == 0) frozen.push_back(p);
          runtime.set_frozen(frozen, true);
          const auto got = gradients();
          EXPECT_EQ(got.size(), want.size() - frozen.size()) << family;
          for (auto& [name, values] : got) EXPECT_EQ(values, want.at(name)) << family << " " << name;
          runtime.set_frozen(frozen, false);
        }
      });
    }
}

TEST(Arrangements, GatesThatAreNotNormalisedTrainAlike) {
  ModelDescription m = described("qwen3_moe");
  m.init_std = 0.2f;
  const Outcome normalised = train(m, {.name = "one"});
  m.mixture.normalise = false;
  const Outcome want = train(m, {.name = "one"});
  EXPECT_GT(distance(want.logits, normalised.logits), 1e-3);
  expect_near(train(m, {.name = "tp 2 ep 2", .ranks = 4, .tp = 2, .ep = 2}), want, "not normalised");
}

TEST(Arrangements, UnitsOfBf16StayNearF32) {
  std::vector<const char*> families(std::begin(kFamilies), std::end(kFamilies));
  families.push_back("byte_gpt");
  for (const char* family : families) {
    const ModelDescription m = described(family);
    const Outcome want = train(m, {.name = "f32"});
    for (const int tp : {1, 2}) {
      const Outcome got = train(m, {.name = "bf16", .ranks = 2, .tp = tp, .compute = DType::bf16});
      // Two layers of some ten roundings to 2^-9, and what three steps make of them.
      EXPECT_LT(distance(got.losses, want.losses), 0.01) << family << tp;
      for (const float l : got.logits) ASSERT_TRUE(std::isfinite(l)) << family;
    }
  }
}

TEST(Arrangements, TheLossNeedsNoLogitsOfAllRows) {
  const ModelDescription m = described("llama");
  for (const int tp : {1, 2}) {
    const Outcome whole = train(m, {.name = "whole", .ranks = tp, .tp = tp, .logits_chunk = 0});
    for (const int64_t chunk : {1, 7, 36, 1000})
      expect_near(train(m, {.name = "chunked", .ranks = tp, .tp = tp, .logits_chunk = chunk}), whole,
                  "chunked");
  }
}

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Files have no padding: written by uneven ranks, read by others, and the other way round.
TEST(Arrangements, FilesOfPaddedVocabulariesHaveTheVocabularyAlone) {
  const fs::path folder = fs::temp_directory_path() / ("sherd_models_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  ModelDescription m = described("qwen3_moe");
  m.vocab = 21;
  const Arrangement uneven{.name = "tp 4", .ranks = 4, .tp = 4, .ep = 2}, one{.name = "one"};
  const Outcome trained = train(m, uneven, {.look = [&](RankContext&, ArrangedModel& a, int) {
                                  export_weights(*a.model, folder / "uneven.safetensors");
                                  for (auto& [name, p] : a.model->named_parameters())
                                    if (name == "lm_head.weight") {
                                      EXPECT_EQ(p.global_shape(), (Shape{21, 24}));
                                      EXPECT_EQ(p.shape(), (Shape{6, 24}));
                                    }
                                }});
  for (const Arrangement& other : {one, Arrangement{.name = "tp 2 x dp 2", .ranks = 4, .tp = 2, .ep = 2},
                                   Arrangement{.name = "zero3", .ranks = 3}})
    launch(other.ranks, [&](RankContext& rank) {
      ArrangedModel arranged(rank, m, other);
      arranged.shard();
      import_weights(*arranged.model, folder / "uneven.safetensors");
      export_weights(*arranged.model, folder / (std::string(other.name) + ".safetensors"));
    });
  launch(uneven.ranks, [&](RankContext& rank) {
    ArrangedModel arranged(rank, m, uneven);
    arranged.shard();
    import_weights(*arranged.model, folder / "one.safetensors");
    export_weights(*arranged.model, folder / "again.safetensors");
    EXPECT_EQ(
        ops::to_floats(rank.device->compute(), (*arranged.model)(tokens(*rank.device, m, {2, kSeq}, 0, 9))),
        trained.logits);
  });
  const std::string want = content(folder / "uneven.safetensors");
  EXPECT_GT(want.size(), 1000u);
  for (const char* other : {"one", "tp 2 x dp 2", "zero3", "again"})
    EXPECT_TRUE(content(folder / (std::string(other) + ".safetensors")) == want) << other;
  fs::remove_all(folder);
}

TEST(Arrangements, SequencesLongerThanThePositionsAreRefused) {
  launch(1, [&](RankContext& rank) {
    ModelDescription m = described("gpt2");
    m.positions = 8;
    ArrangedModel arranged(rank, m, {.name = "one"});
    arranged.shard();
    EXPECT_THAT(message_of<ShapeMismatch>([&] {
                  (*arranged.model)(tokens(*rank.device, m, {1, kSeq}, 0, 0));
                }),
                testing::HasSubstr("at most 8 positions"));
  });
}

// Scores are of size 1, through two layers of sums in other orders: 1e-5 of the largest logit, as elsewhere.
TEST(Arrangements, TokenByTokenWithACacheIsTheWholeSequence) {
  for (const Arrangement& a : {Arrangement{.name = "gpt2", .ranks = 2, .tp = 2},
                               Arrangement{.name = "byte_gpt", .ranks = 2, .tp = 2},
                               Arrangement{.name = "llama", .ranks = 4, .tp = 4},
                               Arrangement{.name = "qwen3_moe", .ranks = 2, .tp = 2, .ep = 2},
                               Arrangement{.name = "deepseek_v3", .ranks = 2, .tp = 2, .ep = 2},
                               Arrangement{.name = "glm4_moe", .ranks = 2, .tp = 2, .ep = 2},
                               Arrangement{.name = "olmo3", .ranks = 2, .tp = 2},
                               Arrangement{.name = "gemma3_text", .ranks = 2, .tp = 2},
                               Arrangement{.name = "mistral_longrope", .ranks = 2, .tp = 2},
                               Arrangement{.name = "qwen2_yarn", .ranks = 3, .tp = 3},
                               Arrangement{.name = "gpt_oss", .ranks = 2, .tp = 2, .ep = 2}})
    launch(a.ranks, [&](RankContext& rank) {
      const ModelDescription m = described(a.name);
      ArrangedModel arranged(rank, m, a, 5);
      arranged.shard();
      nn::CausalModel& model = *arranged.model;
      model.set_training(false);
      Stream& s = rank.device->compute();
      const Tensor all = tokens(*rank.device, m, {1, kSeq}, 0, 3);
      nn::KvCache cache = model.make_cache(*rank.device, kSeq, DType::f32);
      const auto rows = [&](int64_t from, int64_t to) { return all.flat(from, to).view({1, to - from}); };
      for (int64_t from = 0, to = 4; from < kSeq; from = to, ++to) {
        const std::vector<float> whole = ops::to_floats(s, model(rows(0, to)));
        // The ninth token makes the sequence a long one.
        if (m.changes_angles(from, to)) {
          EXPECT_EQ(to, m.rope.scaling.original_max_position_embeddings + 1) << a.name;
          EXPECT_THROW(model(rows(from, to), &cache), InvalidArgument) << a.name;
          EXPECT_EQ(cache.length(), from);
          cache.clear();
          from = 0;
        }
        const std::vector<float> got = ops::to_floats(s, model(rows(from, to), &cache));
        EXPECT_LT(distance(got, {whole.end() - m.vocab, whole.end()}), 1e-5) << a.name << " after " << to;
      }
    });
}

TEST(Arrangements, CachesOfAnotherModelAndBatchesAreRefused) {
  launch(1, [&](RankContext& rank) {
    const ModelDescription m = described("llama");
    ArrangedModel arranged(rank, m, {.name = "one"}, 5);
    arranged.shard();
    nn::CausalModel& model = *arranged.model;
    model.set_training(false);
    nn::KvCache other(*rank.device, m.layers + 1, kSeq, m.kv_heads, m.head_dim, DType::f32),
        cache = model.make_cache(*rank.device, kSeq, DType::f32);
    EXPECT_THROW(model(tokens(*rank.device, m, {1, kSeq}, 0, 3), &other), InvalidArgument);
    EXPECT_THROW(model(tokens(*rank.device, m, {2, kSeq}, 0, 3), &cache), ShapeMismatch);
    EXPECT_THROW(model(tokens(*rank.device, m, {2, kSeq}, 0, 3), nullptr), ShapeMismatch);
    EXPECT_THROW(model(Tensor::empty(*rank.device, {1, 0}, DType::i32, "data"), &cache), ShapeMismatch);
    // State that an aborted forward left in a layer is dropped by the next.
    const Tensor all = tokens(*rank.device, m, {1, kSeq}, 0, 3);
    const std::vector<float> want = ops::to_floats(rank.device->compute(), model(all, &cache));
    cache.clear();
    const int64_t columns = (m.heads + 2 * m.kv_heads) * m.head_dim;
    const Tensor left = Tensor::empty(*rank.device, {2, columns}, DType::f32, "test");
    ops::fill(rank.device->compute(), left, 1);
    cache.layer(0).append(rank.device->compute(), left, m.heads);
    EXPECT_EQ(ops::to_floats(rank.device->compute(), model(all, &cache)), want);
  });
}

}  // namespace
}  // namespace sherd::test
