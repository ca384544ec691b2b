// Gather slots: their assignment, and the wait of the next holder.

#include <sherd/fsdp/slots.h>

#include <future>
#include <stdexcept>
#include <vector>

#include "support/message_of.h"

namespace sherd {
namespace {

TEST(SlotPlan, UnitsOfOneHeightTakeTurnsInSlotsOfTheLargest) {
  const SlotPlan plan = plan_slots({{10}, {30}, {20}, {10}}, 2);
  EXPECT_THAT(plan.slot_of, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(plan.elements, ElementsAre(20, 30));
}

TEST(SlotPlan, HeightsShareNothingAndWhoDoesNotShareHasItsOwn) {
  const SlotPlan plan = plan_slots({{10, 0}, {40, 1}, {20, 0}, {50, 1}, {60, 0, false}, {70, 2, false}}, 1);
  EXPECT_THAT(plan.slot_of, ElementsAre(0, 1, 0, 1, 2, 3));
  EXPECT_THAT(plan.elements, ElementsAre(20, 50, 60, 70));
}

TEST(SlotPlan, AUnitThatNeedsNoSlotTakesItsTurnAllTheSame) {
  const SlotPlan plan = plan_slots({{10}, {0}, {20}, {30}}, 2);
  EXPECT_THAT(plan.slot_of, ElementsAre(0, -1, 0, 1));
  EXPECT_THAT(plan.elements, ElementsAre(20, 30));
}

TEST(SlotPlan, UsersOfKnownTimesShareWhatIsFreeAtTheirBegin) {
  const SlotPlan example = plan_slots_in_time({{5, 0, 1}, {7, 1, 2}, {9, 2, 3}});
  EXPECT_EQ(example.slot_of, (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(example.elements, (std::vector<int64_t>{9, 7}));
  // Given in another order than that of time; one needs nothing, one has it all the time.
  const SlotPlan plan = plan_slots_in_time({{4, 3, 3}, {0, 0, 9}, {1, 0, 9}, {6, 0, 1}, {2, 2, 2}});
  EXPECT_EQ(plan.slot_of, (std::vector<int>{1, -1, 0, 1, 1}));
  EXPECT_EQ(plan.elements, (std::vector<int64_t>{1, 6}));
  EXPECT_TRUE(plan_slots_in_time({}).elements.empty());
}

TEST(SlotPlan, MoreTurnsThanUnitsAreNoMoreSlots) {
  EXPECT_THAT(plan_slots({{10}, {20}}, 8).elements, ElementsAre(10, 20));
}

struct SlotPoolTest : testing::Test {
  std::shared_ptr<Device> device = make_cpu_device();
  Stream& compute = device->compute();
  SlotPool pool = SlotPool(*device, DType::f32, MemoryClass::gathered, "test slots",
                           plan_slots({{32}, {96}, {64}, {0}}, 2), {32, 96, 64, 0});

  void SetUp() override {
    for (auto& b : pool.buffers())
      *b.memory = Tensor::empty(*device, {b.spec.elements}, b.spec.dtype, b.spec.name);
  }
  int64_t bytes() const { return device->allocator().live_bytes("test slots"); }
};

TEST_F(SlotPoolTest, AUnitAlwaysHasTheSameAddress) {
  EXPECT_EQ(bytes(), 4 * (64 + 96));
  EXPECT_FALSE(pool.has(3));
  const void* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    for (const int unit : {0, 1, 2}) {
      SlotPool::Lease lease = pool.acquire(unit, compute);
      EXPECT_TRUE(pool.held(unit));
      EXPECT_EQ(pool.held(0), unit != 1) << "units 0 and 2 have one slot";
      if (unit == 0 && first == nullptr) first = lease.memory().raw();
      EXPECT_EQ(lease.memory().raw() == first, unit != 1);
      lease.end({});
    }
  }
  EXPECT_EQ(bytes(), 4 * (64 + 96));
}

TEST_F(SlotPoolTest, TheNextHoldersStreamWaitsForThePreviousOnesEvent) {
  auto stream = device->make_stream("test");
  std::promise<void> promise;
  compute.submit("gate", [f = promise.get_future().share()](ExecutionContext&) { f.wait(); });
  SlotPool::Lease lease = pool.acquire(0, *stream);
  lease.end(compute.record());
  EXPECT_FALSE(lease);
  EXPECT_FALSE(pool.held(0));
  lease = pool.acquire(2, *stream);
  const Event begun = stream->record();
  EXPECT_FALSE(begun.done());
  promise.set_value();
  begun.synchronize();
}

TEST_F(SlotPoolTest, ALeaseThatIsDroppedEndsBehindTheComputeStream) {
  auto stream = device->make_stream("test");
  std::promise<void> promise;
  compute.submit("gate", [f = promise.get_future().share()](ExecutionContext&) { f.wait(); });
  { SlotPool::Lease dropped = pool.acquire(0, *stream); }
  EXPECT_FALSE(pool.held(0));
  const SlotPool::Lease lease = pool.acquire(2, *stream);
  const Event begun = stream->record();
  EXPECT_FALSE(begun.done());
  promise.set_value();
  begun.synchronize();
}

TEST_F(SlotPoolTest, AnIdleHolderIsAskedToReleaseItsSlot) {
  SlotPool::Lease idle = pool.acquire(0, compute);
  std::vector<int> asked;
  pool.set_give_back([&](int holder) {
    asked.push_back(holder);
    idle.end({});
    return true;
  });
  const void* const memory = idle.memory().raw();
  const SlotPool::Lease lease = pool.acquire(2, compute);
  EXPECT_THAT(asked, ElementsAre(0));
  EXPECT_EQ(lease.memory().raw(), memory);
}

TEST_F(SlotPoolTest, BesideAHolderThatIsInUseAUnitGetsASlotOfItsOwnForGood) {
  for (const bool asks : {false, true}) {
    if (asks) pool.set_give_back([](int) { return false; });
    const SlotPool::Lease busy = pool.acquire(0, compute);
    SlotPool::Lease own = pool.acquire(2, compute);
    EXPECT_NE(own.memory().raw(), busy.memory().raw());
    EXPECT_EQ(own.memory().numel(), 64);
    EXPECT_EQ(bytes(), 4 * (64 + 96 + 64)) << "made once";
  }
}

TEST(SlotPool, ThatHasNoRoomForAnotherSlotIsAsBefore) {
  constexpr int64_t kMiB = 1 << 20;
  auto device = make_cpu_device({.memory_limit = kMiB * 3 / 2});
  SlotPool pool(*device, DType::u8, MemoryClass::gathered, "test slots", plan_slots({{kMiB}, {kMiB}}, 1),
                {kMiB, kMiB});
  for (auto& b : pool.buffers())
    *b.memory = Tensor::empty(*device, {b.spec.elements}, b.spec.dtype, b.spec.name);
  SlotPool::Lease busy = pool.acquire(0, device->compute());
  EXPECT_THROW(pool.acquire(1, device->compute()), OutOfMemory);
  busy.end({});
  EXPECT_TRUE(pool.acquire(1, device->compute()));
}

}  // namespace
}  // namespace sherd
