// Unsharded: units stay gathered in memory of their own, with the bits of a run without it.
#include <sherd/fsdp/unsharded.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

int64_t all_gathers(const CommCounts& counts) {
  int64_t calls = 0;
  for (const auto& [verb, count] : counts)
    if (verb.starts_with("all_gather")) calls += count.calls;
  return calls;
}

std::vector<float> weights_of(Rig& rig) {
  std::vector<float> all;
  for (auto& [name, p] : rig.model.named_parameters()) {
    const std::vector<float> own = ops::to_floats(rig.rank.device->compute(), p.shard());
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

TEST(Unsharded, EvaluationsGatherOnceAndMemoryIsGivenBack) {
  for (const Strategy strategy : kEveryStrategy)
    for (const bool reshard : {true, false})
      for (const int replicas : {1, 2})
        launch(4, [&](RankContext& r) {
          Rig rig(r, {.strategy = strategy, .reshard_after_forward = reshard}, replicas);
          rig.step();
          rig.model.set_training(false);
          rig.counted([&] { rig.forward(); });
          rig.sync();
          const int64_t before = r.device->allocator().live_bytes(MemoryClass::gathered);
          {
            const Unsharded whole(rig.model);
            EXPECT_EQ(all_gathers(rig.counted([&] { rig.forward(); })), 0);
            {
              const Unsharded inner(rig.model);
              EXPECT_EQ(all_gathers(rig.counted([&] { rig.forward(); })), 0);
            }
            EXPECT_EQ(all_gathers(rig.counted([&] { rig.forward(); })), 0)
                << "the inner scope ended the outer one";
            EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::gathered) > before,
                      strategy == Strategy::optim_grads_params);
          }
          EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::gathered), before);
          const bool gathers = strategy == Strategy::optim_grads_params;
          EXPECT_EQ(all_gathers(rig.counted([&] { rig.forward(); })) > 0, gathers);
          rig.model.set_training(true);
          EXPECT_NO_THROW(rig.step());
          rig.sync();
        });
}

TEST(Unsharded, UnitsThatAreNotReshardedStaySoInEvaluation) {
  launch(2, [&](RankContext& r) {
    Rig rig(r, {.strategy = Strategy::optim_grads_params, .reshard_after_forward = false});
    rig.model.set_training(false);
    rig.counted([&] { rig.forward(); });
    // The root alone is gathered again.
    EXPECT_LE(all_gathers(rig.counted([&] { rig.forward(); })), 1);
    rig.model.set_training(true);
    rig.step();
    rig.sync();
  });
}

TEST(Unsharded, TrainingInsideHasTheSameBits) {
  for (const Strategy strategy : kEveryStrategy)
    for (const DType compute : {DType::f32, DType::bf16}) {
      std::vector<std::vector<float>> want(3);
      const auto train = [&](bool scope) {
        launch(3, [&](RankContext& r) {
          Rig rig(r, {.strategy = strategy, .compute_dtype = compute});
          rig.step();
          {
            std::optional<Unsharded> whole;
            if (scope) whole.emplace(rig.model);
            rig.model.set_training(false);
            rig.forward();
            rig.model.set_training(true);
            for (int i = 0; i < 3; ++i) rig.step();
          }
          rig.step();
          rig.sync();
          const auto me = static_cast<size_t>(r.world->rank());
          if (scope)
            EXPECT_EQ(weights_of(rig), want[me]);
          else
            want[me] = weights_of(rig);
        });
      };
      train(false);
      train(true);
    }
}

TEST(Unsharded, AModelThatEndsFirstIsNoError) {
  launch(2, [](RankContext& r) {
    std::optional<Rig> rig(std::in_place, r, FullyShardOptions{});
    rig->model.set_training(false);
    const Unsharded whole(rig->model);
    rig->forward();
    rig->sync();
    rig.reset();
  });
}

TEST(Unsharded, RefusedOnEveryRankWhereItDoesNotFitOnOne) {
  std::vector<std::string> texts(2);
  launch(2, {.device = {.memory_limit = 4'000'000}}, [&](RankContext& r) {
    Rig rig(r, FullyShardOptions{}, 1, nullptr, 64, 128);
    rig.model.set_training(false);
    rig.forward();
    rig.sync();
    const int64_t free = r.device->allocator().limit_bytes() - r.device->allocator().live_bytes();
    std::optional<Tensor> ballast;
    if (r.world->rank() == 1) ballast = Tensor::empty(*r.device, {free - 4096}, DType::u8, "ballast");
    const int64_t before = r.device->allocator().live_bytes(MemoryClass::gathered);
    texts[static_cast<size_t>(r.world->rank())] =
        message_of<OutOfMemory>([&] { const Unsharded whole(rig.model); });
    EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::gathered), before);
    ballast.reset();
    rig.forward();
    const Unsharded whole(rig.model);
    rig.forward();
    rig.sync();
  });
  EXPECT_THAT(texts, Each(HasSubstr("Unsharded: ")));
  EXPECT_THAT(texts[0], HasSubstr("rank 1"));
}

TEST(Unsharded, RefusedInsideAForwardAndKeepsNothingThen) {
  for (const int ranks : {1, 2})
    launch(ranks, [](RankContext& r) {
      Rig rig(r, {});
      Unit& root = *runtime_of(rig.model).units().back();
      rig.model.set_training(false);
      rig.forward();
      rig.sync();
      const int64_t before = r.device->allocator().live_bytes(MemoryClass::gathered);
      root.pre_forward(ForwardKind::evaluation);
      EXPECT_THROW(const Unsharded whole(rig.model), InvalidArgument);
      root.post_forward();
      EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::gathered), before);
      { const Unsharded whole(rig.model); }
      rig.sync();  // queued gathers hold their memory
      EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::gathered), before);
    });
}

}  // namespace
}  // namespace sherd::test
