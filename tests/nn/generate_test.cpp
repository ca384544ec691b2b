// Generation of several sequences at a time: each is that of the sequence alone, whatever the strategy.
#include <sherd/nn/models/generate.h>

#include <algorithm>
#include <fstream>

#include <sherd/fsdp/unsharded.h>

#include "golden_model.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

nn::ModelDescription sharp_model(const std::string& family) {
  nn::ModelDescription m = GoldenFolder(family).description;
  m.init_std = 0.3f;  // logits that rounding does not exchange
  return m;
}

Texts prompts(const nn::ModelDescription& m, const std::vector<int64_t>& lengths) {
  Texts all;
  for (size_t i = 0; i < lengths.size(); ++i) {
    all.emplace_back();
    for (int64_t t = 0; t < lengths[i]; ++t)
      all.back().push_back(static_cast<int32_t>((t * t * 5 + 17 * std::ssize(all) + t) % m.vocab));
  }
  return all;
}

/// Greedy, each token from a forward of the whole text without a cache.
std::vector<int32_t> whole_forwards(nn::CausalModel& model, Device& device, std::vector<int32_t> text,
                                    int64_t count) {
  std::vector<int32_t> made;
  model.set_training(false);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor in = Tensor::empty(device, {1, std::ssize(text)}, DType::i32, "test");
    ops::copy_from_host(device.compute(), in, text.data(), in.nbytes());
    const std::vector<float> last =
        ops::to_floats(device.compute(), model(in).rows(std::ssize(text) - 1, std::ssize(text)));
    made.push_back(static_cast<int32_t>(std::ranges::max_element(last) - last.begin()));
    text.push_back(made.back());
  }
  model.set_training(true);
  return made;
}

TEST(Generate, ABatchOfUnequalLengthsIsEachSequenceAlone) {
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    launch(1, [&](RankContext& rank) {
      const nn::ModelDescription m = sharp_model(family);
      ArrangedModel arranged(rank, m, {.name = ""}, 7);
      arranged.shard();
      nn::CausalModel& model = *arranged.model;
      const Texts all = prompts(m, {1, 5, 3, 9, 2, 1});
      const nn::GenerateOptions o{.max_tokens = 7};
      const Texts together = nn::generate(model, all, o);
      EXPECT_TRUE(model.training());
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(nn::generate(model, {all[i]}, o)[0], together[i]) << "prompt " << i;
        EXPECT_EQ(whole_forwards(model, *rank.device, all[i], 7), together[i]) << "prompt " << i;
      }
    });
  }
}

/// 16 prompts of unequal lengths together, beside `transformers.generate` of each alone (tests/golden/make_generated.py), on one
/// rank and on ranks that share the model.
TEST(Generate, SixteenPromptsTogetherAreThoseOfTransformers) {
  const auto all =
      nlohmann::json::parse(std::ifstream(std::filesystem::path(GOLDEN_FOLDER) / "generated.json"));
  for (const char* family : kFamilies)
    for (const Arrangement& a : {Arrangement{.name = "one rank"},
                                 {.name = "tp 2", .ranks = 2, .tp = 2},
                                 {.name = "zero3", .ranks = 2}}) {
      SCOPED_TRACE(std::string(family) + ", " + a.name);
      launch(a.ranks, [&](RankContext& rank) {
        const GoldenFolder golden(family);
        ArrangedModel arranged(rank, golden.description, a);
        arranged.shard();
        golden.load(*arranged.model, golden.description);
        Texts prompts;
        for (const auto& text : all.at("families").at(family)) prompts.push_back(text.at("prompt"));
        const Unsharded whole(*arranged.model);
        const Texts made =
            nn::generate(*arranged.model, prompts, {.max_tokens = 8, .same = rank.world.get()});
        for (size_t i = 0; i < made.size(); ++i) {
          const std::vector<int32_t> want = all.at("families").at(family)[i].at("made");
          EXPECT_EQ(std::vector(made[i].begin(), made[i].begin() + std::ssize(want)), want)
              << family << ", prompt " << i;
        }
      });
    }
}

TEST(Generate, SequencesEndByStopTokensAndLengthOnTheirOwn) {
  launch(1, [&](RankContext& rank) {
    const nn::ModelDescription m = sharp_model("llama");
    ArrangedModel arranged(rank, m, {.name = ""}, 7);
    arranged.shard();
    const Texts all = prompts(m, {4, 2, 6});
    const Texts free = nn::generate(*arranged.model, all, {.max_tokens = 9});
    const int32_t stop = free[1][3];
    std::vector<size_t> order;
    nn::GenerateOptions o{.max_tokens = 9, .stop = {stop, -5}};
    o.made = [&](size_t prompt, int32_t) { order.push_back(prompt); };
    const Texts ended = nn::generate(*arranged.model, all, o);
    size_t tokens = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      auto want = free[i];
      const auto at = std::ranges::find(want, stop);
      if (at != want.end()) want.erase(at + 1, want.end());
      EXPECT_EQ(ended[i], want);
      EXPECT_EQ(std::ranges::count(order, i), std::ssize(want));
      tokens += want.size();
    }
    EXPECT_LE(ended[1].size(), 4u);
    EXPECT_EQ(order.size(), tokens);
    EXPECT_EQ(nn::generate(*arranged.model, all, {.max_tokens = 0}), Texts(3));
    EXPECT_TRUE(nn::generate(*arranged.model, {}, {}).empty());
  });
}

TEST(Generate, DrawsDependOnSeedAndSequenceAlone) {
  launch(1, [&](RankContext& rank) {
    const nn::ModelDescription m = sharp_model("llama");
    ArrangedModel arranged(rank, m, {.name = ""}, 7);
    arranged.shard();
    const Texts all(4, prompts(m, {4})[0]);
    nn::GenerateOptions o{.max_tokens = 12, .draw = {.temperature = 2}, .seed = 3};
    const Texts first = nn::generate(*arranged.model, all, o);
    EXPECT_EQ(nn::generate(*arranged.model, all, o), first);
    EXPECT_EQ(nn::generate(*arranged.model, {all[0]}, o)[0], first[0]);
    EXPECT_NE(first[0], first[1]);
    EXPECT_NE(first[1], first[2]);
    o.seed = 4;
    EXPECT_NE(nn::generate(*arranged.model, all, o), first);
  });
}

/// Longer than the model's positions, and than a capacity: the window moves for each sequence at its own time.
TEST(Generate, WindowsOfSequencesMoveOnTheirOwn) {
  launch(1, [&](RankContext& rank) {
    nn::ModelDescription m = sharp_model("llama");
    m.positions = 16;
    ArrangedModel arranged(rank, m, {.name = ""}, 7);
    arranged.shard();
    const Texts all = prompts(m, {3, 14, 40});
    const Texts together = nn::generate(*arranged.model, all, {.max_tokens = 30});
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(nn::generate(*arranged.model, {all[i]}, {.max_tokens = 30})[0], together[i]);
  });
}

int64_t gathers(RankContext& rank) {
  int64_t calls = 0;
  for (const auto& [verb, count] : rank.world->counts())
    if (verb.starts_with("all_gather")) calls += count.calls;
  return calls;
}

/// Data-parallel ranks with prompts of their own, one without any: unsharded for each token, and once.
TEST(Generate, RanksWithOtherPromptsGenerateTogetherOrUnsharded) {
  for (const Arrangement& a : {Arrangement{.name = "zero3", .ranks = 3},
                               {.name = "tp 2 x zero3", .ranks = 4, .tp = 2},
                               {.name = "replicas", .ranks = 4, .replicas = 2},
                               {.name = "zero1", .ranks = 2, .strategy = Strategy::optim}}) {
    SCOPED_TRACE(a.name);
    const nn::ModelDescription m = sharp_model("llama");
    const auto own = [&](int data_rank) {
      Texts all = prompts(m, {2, 7, 1, 4});
      all.resize(static_cast<size_t>(data_rank == 0 ? 3 : data_rank == 1 ? 0 : 1));
      return all;
    };
    Texts want;
    launch(1, [&](RankContext& rank) {
      ArrangedModel one(rank, m, {.name = ""}, 7);
      one.shard();
      want = nn::generate(*one.model, own(0), {.max_tokens = 8});
    });
    launch(a.ranks, [&](RankContext& rank) {
      ArrangedModel arranged(rank, m, a, 7);
      arranged.shard();
      nn::CausalModel& model = *arranged.model;
      const Texts mine = own(arranged.data_rank);
      const nn::TensorParallel tp = nn::TensorParallel::of(arranged.mesh);
      nn::GenerateOptions o{.max_tokens = 8, .same = tp.comm.get(), .together = rank.world.get()};
      const Texts together = nn::generate(model, mine, o);
      ASSERT_EQ(together.size(), mine.size());
      for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(together[i], want[i]);
      const Unsharded whole(model);
      const int64_t before = gathers(rank);
      if (a.tp == 1) o.together = nullptr;  // forwards need no other ranks now; tp gathers logits
      EXPECT_EQ(nn::generate(model, mine, o), together);
      if (a.tp == 1) {
        EXPECT_EQ(gathers(rank), before);
      }
    });
  }
}

TEST(Generate, LeavesTrainingModesAndCachesAsTheyWere) {
  launch(1, {.device = {.memory_limit = 1'400'000}}, [&](RankContext& rank) {
    nn::ModelDescription m = sharp_model("llama");
    m.vocab = 20'000;  // one row of logits takes 80 kB
    m.tied = true;
    m.dim = 8;
    m.head_dim = 2;
    ArrangedModel arranged(rank, m, {.name = ""}, 7);
    for (auto& [name, p] : arranged.model->named_parameters()) Parameter(p).freeze();
    arranged.shard();
    nn::CausalModel& model = *arranged.model;
    model.block(1).set_training(false);
    EXPECT_EQ(nn::generate(model, {{1, 2}}, {.max_tokens = 2})[0].size(), 2u);
    EXPECT_TRUE(model.training() && model.block(0).training());
    EXPECT_FALSE(model.block(1).training());

    nn::KvCache cache = model.make_cache(*rank.device, 8, DType::f32),
                other = model.make_cache(*rank.device, 8, DType::f32);
    const Tensor token = Tensor::empty(*rank.device, {1, 1}, DType::i32, "test"),
                 two = Tensor::empty(*rank.device, {2, 1}, DType::i32, "test");
    for (const Tensor& t : {token, two}) ops::fill(rank.device->compute(), t, 3);
    {
      const Allocator& allocator = rank.device->allocator();
      const Tensor ballast = Tensor::empty(
          *rank.device, {allocator.limit_bytes() - allocator.live_bytes() - 60'000}, DType::u8, "ballast");
      EXPECT_THROW(model(token, &cache), OutOfMemory) << "of the logits, behind the last layer";
    }
    EXPECT_EQ(cache.length(), 0);
    EXPECT_THROW(model(two, std::vector{&cache, &cache}), InvalidArgument);
    EXPECT_THROW(model(two, std::vector<nn::KvCache*>{&cache, nullptr}), InvalidArgument);
    model(two, std::vector{&cache, &other});
    EXPECT_EQ(cache.length(), 1);
    EXPECT_EQ(other.length(), 1);
  });
}

TEST(Generate, RefusesWhatCannotBe) {
  launch(1, [&](RankContext& rank) {
    const nn::ModelDescription m = sharp_model("llama");
    ArrangedModel arranged(rank, m, {.name = ""}, 7);
    arranged.shard();
    const Texts all = prompts(m, {2, 0});
    EXPECT_THAT(message_of<InvalidArgument>([&] { nn::generate(*arranged.model, all); }),
                HasSubstr("prompt 1 has no tokens"));
    EXPECT_THROW(nn::generate(*arranged.model, {{1}}, {.draw = {.temperature = -1}}), InvalidArgument);
    EXPECT_THROW(nn::generate(*arranged.model, {{1}}, {.max_tokens = -1}), InvalidArgument);
    EXPECT_THROW(nn::generate(*arranged.model, {{1}}, {.capacity = m.positions + 1}), InvalidArgument);
    EXPECT_TRUE(arranged.model->training());
  });
}

}  // namespace
}  // namespace sherd::test
