// Units without a runtime: events of their gathers, and the log of their uses.
#include <gtest/gtest.h>

#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/unit.h>

#include <chrono>
#include <future>
#include <thread>

namespace sherd {
namespace {

TEST(UseLog, DigestDependsOnTheUsesBeforeAUnitNamedAsTheVerb) {
  UseLog one, other;
  one.add("unshard", "blocks.0");
  other.add("unshard", "blocks.1");
  for (UseLog* log : {&one, &other}) log->add("forward", "forward");
  EXPECT_NE(one.digest(), other.digest());
}

TEST(UseLog, DigestDistinguishesTheVerbFromTheUnit) {
  UseLog one, other;
  one.add("forward", "backward");
  other.add("backward", "forward");
  EXPECT_NE(one.digest(), other.digest());
}

// Same as with buckets: sync_ahead() has queued the gathers of all units before the first one is unsharded.
TEST(Unit, WithoutASlotWaitsForItsOwnGatherOnly) {
  auto device = make_cpu_device();
  UnitContext context(*device, 2, {"first", "root"}, 1, true);
  Unit first(context, {.name = "first"});
  first.sync();
  std::promise<void> promise;
  context.gather->submit("gather of a later unit",
                         [f = promise.get_future().share()](ExecutionContext&) { f.wait(); });
  first.unshard();
  first.wait();
  const Event waited = device->compute().record();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!waited.done() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(waited.done()) << "compute waits for the gather of a later unit";
  promise.set_value();
  device->compute().synchronize();
}

TEST(Unit, AnUnshardWithoutMemoryIsNotInTheDigest) {
  constexpr int64_t kMiB = 1 << 20;
  auto device = make_cpu_device({.memory_limit = kMiB * 3 / 2});
  UnitContext context(*device, 2, {"busy", "late", "root"}, 0, true);
  context.whole = SlotPool(*device, DType::u8, MemoryClass::gathered, "test slots",
                           plan_slots({{kMiB}, {kMiB}}, 1), {kMiB, kMiB});
  for (auto& b : context.whole.buffers())
    *b.memory = Tensor::empty(*device, {b.spec.elements}, b.spec.dtype, b.spec.name);
  Unit busy(context, {.name = "busy", .number = 0}), late(context, {.name = "late", .number = 1});
  busy.unshard();
  EXPECT_THROW(late.unshard(), OutOfMemory);
  busy.reshard();
  late.unshard();
  UseLog expected;
  for (const char* unit : {"busy", "late"}) expected.add("unshard", unit);
  EXPECT_EQ(context.log.digest(), expected.digest());
  late.reshard();
}

}  // namespace
}  // namespace sherd
