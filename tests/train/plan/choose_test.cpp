// sherd::choose() beside each of its choices alone, and beside runs.
#include <sherd/train/plan/choose.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<Rig> make_rig(RankContext& rank, const Sharding& s) {
  const auto recompute = [&](ToyModel& model) {
    if (s.variant == 1)
      for (auto& block : model.blocks_) block->set_recompute(true);
  };
  return std::make_unique<Rig>(rank, s.unit, 1, recompute, 64, 512, s.root);
}

void train_step(Rig& rig) {
  rig.step();
  rig.rank.device->compute().synchronize();
}

/// Its second variant recomputes blocks.
std::function<void()> rig_step(RankContext& rank, const DeviceMesh& mesh, const Sharding& s) {
  EXPECT_EQ(mesh.size(), rank.world->size());
  return [rig = std::shared_ptr(make_rig(rank, s))] { train_step(*rig); };
}

ChoiceLimits limits_of() {
  ChoiceLimits limits{.hardware = hardware_profile("cpu"), .prefetch = {0, 2}, .variants = 2};
  limits.device.device.kernels = parse_cpu_kernels(TEST_KERNELS);
  limits.device.device.threads = 1;
  return limits;
}

ChosenSharding of(const ChoiceLimits& limits, int ranks = 4) {
  return choose(rig_step, {{"shard", ranks}}, limits);
}

std::vector<ChosenSharding> each_alone(int ranks) {
  std::vector<ChosenSharding> all;
  for (const int variant : {0, 1})
    for (const Strategy strategy : kEveryStrategy)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
        for (const int prefetch : {0, 2}) {
          ChoiceLimits one = limits_of();
          one.strategies = {strategy};
          one.layouts = {layout};
          one.prefetch = {prefetch};
          one.variants = 1;
          one.memory_bytes = int64_t{1} << 40;
          all.push_back(choose(
              [&](RankContext& rank, const DeviceMesh& mesh, Sharding s) {
                s.variant = variant;
                return rig_step(rank, mesh, s);
              },
              {{"shard", ranks}}, one));
        }
  return all;
}

TEST(Choose, IsTheFastestOfThoseThatFit) {
  for (const int ranks : {1, 3}) {
    const std::vector<ChosenSharding> all = each_alone(ranks);
    for (const ChosenSharding& c : all) {
      ChoiceLimits limits = limits_of();
      limits.memory_bytes = c.bytes;
      const ChosenSharding got = of(limits, ranks);
      double fastest = 1;
      for (const ChosenSharding& other : all)
        if (other.bytes <= c.bytes) fastest = std::min(fastest, other.time.total);
      EXPECT_NEAR(got.time.total, fastest, 1e-12);  // sums in another order
      EXPECT_LE(got.bytes, c.bytes);
    }
  }
}

TEST(Choose, TakesAsMuchMemoryAsTheRun) {
  const std::vector<ChosenSharding> all = each_alone(4);
  const auto [least, most] = std::ranges::minmax(all, {}, &ChosenSharding::bytes);
  for (const int64_t memory : {least.bytes, (least.bytes + most.bytes) / 2, most.bytes}) {
    ChoiceLimits limits = limits_of();
    limits.memory_bytes = memory;
    const ChosenSharding chosen = of(limits);
    int64_t bytes = 0;
    std::mutex mutex;
    LaunchOptions launch;
    launch.device.threads = 1;
    test::launch(4, launch, [&](RankContext& rank) {
      const auto rig = make_rig(rank, chosen);
      for (int step = 0; step < 3; ++step) train_step(*rig);
      const std::lock_guard lock(mutex);
      bytes = std::max(bytes, rank.device->allocator().peak_held_bytes());
    });
    // What the allocator keeps depends a little on when streams release it.
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(chosen.bytes),
                1e-3 * static_cast<double>(memory));
  }
}

TEST(Choose, FitsWhereTheAllocatorReturnsWhatItKeepsAndTakesLonger) {
  const ShardedStep step = [](RankContext& rank, const DeviceMesh&, const Sharding&) {
    return [&rank] {
      for (const int64_t mib : {3, 4}) (void)Tensor::empty(*rank.device, {mib << 20}, DType::u8, "test");
    };
  };
  ChoiceLimits limits = limits_of();
  const auto within = [&](int64_t mib) {
    limits.memory_bytes = mib << 20;
    return choose(step, {{"shard", 1}}, limits);
  };
  EXPECT_EQ(within(16).bytes, 7 << 20);
  EXPECT_EQ(within(5).bytes, 4 << 20);
  EXPECT_GT(within(5).time.total, within(16).time.total);
  EXPECT_THROW((void)within(3), OutOfMemory);
}

TEST(Choose, EqualArgumentsGiveEqualChoices) {
  const ChosenSharding one = of(limits_of()), other = of(limits_of());
  EXPECT_EQ(one.time.total, other.time.total);
  EXPECT_EQ(one.unit.strategy, other.unit.strategy);
  EXPECT_EQ(one.variant, 0) << "recomputation is not faster";
}

TEST(Choose, NamesTheNearestWhereNothingFits) {
  ChoiceLimits limits = limits_of();
  limits.memory_bytes = 1000;
  EXPECT_THAT(
      message_of<Error>([&] { (void)of(limits); }),
      AllOf(HasSubstr("fits in 1000 bytes"), HasSubstr("optim_grads_params"), HasSubstr("variant 1")));
  EXPECT_THROW((void)of(limits), OutOfMemory);
}

TEST(Choose, ReportsWhatKeepsEveryChoiceFromRunning) {
  ChoiceLimits limits = limits_of();
  limits.base.unit.shard_dim = "rows";
  EXPECT_THAT(message_of<Error>([&] { (void)of(limits); }), HasSubstr("rows"));
  limits = limits_of();
  limits.layouts.clear();
  EXPECT_THAT(message_of<Error>([&] { (void)of(limits); }), HasSubstr("nothing to choose from"));
}

}  // namespace
}  // namespace sherd::test
