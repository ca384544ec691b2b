// Buffers in NCCL's memory and symmetric windows. The imitated NCCL checks its rules: windows are made by all
// ranks, of one size, of ncclMemAlloc's memory, and are closed before that goes back.

#include <memory>

#include "comm/nccl_runs.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kGranularity = int64_t{2} << 20;

NcclOptions with_windows() {
  NcclOptions options = quick(60s);
  options.windows = true;
  return options;
}

/// One rank's slice, all ranks' slices, and a collective of each kind between them.
struct Buffers {
  Buffers(RankContext& c, int64_t slice = 4)
      : set(c.world->make_buffers(
            std::vector<BufferSpec>{{slice, DType::i32, MemoryClass::message, "slice"},
                                    {slice * c.world->size(), DType::i32, MemoryClass::message, "whole"}})) {}
  void use(Communicator& comm, Stream& s) const {
    const Tensor &slice = set->tensors()[0], &whole = set->tensors()[1];
    for (int64_t i = 0; i < slice.numel(); ++i) slice.data<int32_t>()[i] = comm.rank() + 1;
    comm.all_gather(s, whole, slice);
    const Ints all = read_tensor(s, whole);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i) / 4 + 1);
    comm.reduce_scatter(s, slice, whole);
    EXPECT_EQ(read_tensor(s, slice), Ints(4, (comm.rank() + 1) * comm.size()));
  }

  std::unique_ptr<BufferSet> set;
};

TEST(NcclWindows, HaveTheBuffersOfEveryCommunicatorThatSharesThem) {
  for (const bool queue : {false, true}) {
    const Outcome outcome =
        run(queue ? queue_devices(3) : cpu_devices(3), with_windows(), {.looks = 2}, [](RankContext& c) {
          const auto other = c.world->clone();
          const auto alone = c.world->split(c.world->rank(), 0);
          const Buffers buffers(c);
          for (const auto& comm : {c.world, other, alone, other}) buffers.set->share(*comm);
          buffers.use(*c.world, c.device->compute());
          buffers.use(*other, c.device->compute());
          EXPECT_EQ(buffers.set->describe(),
                    "units' buffers: 2.0 MiB of NCCL's, in symmetric windows of 2 communicators");
        });
    EXPECT_THAT(outcome.texts, Each(""));
    const auto log = fake_nccl::log();
    EXPECT_EQ(log.blocks, 3);
    EXPECT_EQ(log.freed, 3);
    EXPECT_EQ(log.windows, 6);
    EXPECT_EQ(log.windows_closed, 6);
    EXPECT_EQ(log.in_windows, 4);
    EXPECT_EQ(log.outside, 0);
    EXPECT_EQ(log.destroyed, 9);
  }
}

TEST(NcclWindows, MemoryOfTheBlockIsCountedByNameAndUnderTheLimit) {
  const Outcome outcome = run(cpu_devices(2), with_windows(), {}, [](RankContext& c) {
    Allocator& memory = c.device->allocator();
    const int64_t before = memory.held_bytes();
    {
      const Buffers buffers(c);
      EXPECT_EQ(memory.held_bytes(), before + kGranularity);
      EXPECT_EQ(memory.live_bytes("slice") + memory.live_bytes("whole"), 256);
      EXPECT_EQ(memory.live_bytes("window granularity"), kGranularity - 256);
    }
    EXPECT_EQ(memory.live_bytes("window"), 0);
  });
  EXPECT_THAT(outcome.texts, Each(""));
  std::vector<std::shared_ptr<Device>> small;
  for (const char* label : {"rank 0", "rank 1"})
    small.push_back(make_cpu_device({.label = label, .memory_limit = 1 << 20}));
  run(std::move(small), with_windows(), {}, [](RankContext& c) {
    EXPECT_THAT(message_of<OutOfMemory>([&] { const Buffers buffers(c); }),
                HasSubstr("over the memory limit of 1048576 bytes"));
  });
  EXPECT_EQ(fake_nccl::log().freed, fake_nccl::log().blocks);
}

TEST(NcclWindows, WithoutMemoryOfNcclsIsAnOutOfMemoryThatNamesIt) {
  run(cpu_devices(2), with_windows(), {.memory = false}, [](RankContext& c) {
    EXPECT_THAT(message_of<OutOfMemory>([&] { const Buffers buffers(c); }),
                HasSubstr("NCCL (ncclMemAlloc, on the GPU) has no 128 bytes left for 'slice'"));
  });
}

struct Without {
  fake_nccl::Faults faults;
  const char* why;
  int blocks;
};

TEST(NcclWindows, WithoutThemTheDescriptionNamesTheReason) {
  for (const Without& w :
       {Without{{.version = 22602}, "NCCL 2.26.2 has no symmetric windows, 2.27 has; memory as without", 0},
        Without{{.windows = false}, "none for 1: NCCL makes none between these GPUs", 2}}) {
    const Outcome outcome = run(cpu_devices(2), with_windows(), w.faults, [&](RankContext& c) {
      const Buffers buffers(c);
      buffers.set->share(*c.world);
      buffers.use(*c.world, c.device->compute());
      EXPECT_THAT(buffers.set->describe(), HasSubstr(w.why));
    });
    EXPECT_THAT(outcome.texts, Each(""));
    EXPECT_EQ(fake_nccl::log().windows, 0);
    EXPECT_EQ(fake_nccl::log().blocks, w.blocks);
    EXPECT_EQ(fake_nccl::log().freed, w.blocks);
  }
}

TEST(NcclWindows, BuffersThatDifferAmongRanksHaveNone) {
  const Outcome outcome = run(cpu_devices(3), with_windows(), {}, [](RankContext& c) {
    const Buffers buffers(c, c.world->rank() == 2 ? 40 : 4);
    buffers.set->share(*c.world);
    EXPECT_THAT(buffers.set->describe(),
                HasSubstr("none for 1: the buffers of ranks 0 and 2 are of different sizes"));
    // The others may still share theirs.
    const auto pair = c.world->split(c.world->rank() / 2, 0);
    buffers.set->share(*pair);
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().windows, 2);
  EXPECT_EQ(fake_nccl::log().windows_closed, 2);
}

TEST(NcclWindows, NothingIsClosedAfterAFailureAndMemoryGoesLast) {
  const Outcome outcome = run(queue_devices(3), with_windows(), {}, [](RankContext& c) {
    const Buffers buffers(c);
    buffers.set->share(*c.world);
    if (c.world->rank() == 1) c.world->abort("out of luck");
    buffers.use(*c.world, c.device->compute());
  });
  EXPECT_THAT(outcome.texts, Each(HasSubstr("out of luck")));
  const auto log = fake_nccl::log();
  EXPECT_EQ(log.windows_closed, 0);
  EXPECT_EQ(log.freed, log.blocks);
  EXPECT_EQ(log.destroyed, 0);
}

TEST(NcclWindows, ARankThatDoesNotShareIsNamed) {
  const auto run_without_rank_1 = [](std::chrono::milliseconds timeout) {
    NcclOptions options = with_windows();
    options.timeout = timeout;
    Signs signs;
    const auto body = [&](RankContext& c) {
      const Buffers buffers(c);
      if (c.world->rank() == 1) return signs.await_failures({0, 2});
      buffers.set->share(*c.world);
    };
    return run(cpu_devices(3), options, {}, body, &signs);
  };
  const auto is_of_rank_1 =
      AllOf(HasSubstr("making a window of 2097152 bytes (nccl.windows)"), HasSubstr("for rank 1,"));
  const Outcome outcome = with_timeout(run_without_rank_1, [&](const Outcome& o) {
                            return testing::Value(o.texts[0], is_of_rank_1);
                          }).second;
  EXPECT_THAT(outcome.texts[0], is_of_rank_1);
}

TEST(NcclWindows, AreNotRegisteredASecondTime) {
  NcclOptions options = with_windows();
  options.register_buffers = true;
  const Outcome outcome = run(cpu_devices(2), options, {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Buffers buffers(c);
    buffers.set->share(*c.world);
    buffers.use(*c.world, s);
    EXPECT_EQ(fake_nccl::log().registered, 0);
    c.world->barrier(s);
    c.world->all_reduce(s, make_tensor(*c.device, DType::i32, {1, 2}));
    s.synchronize();
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().registered, 2);
}

TEST(NcclWindows, AreMadeOnRequestOnly) {
  const Outcome outcome = run(cpu_devices(2), quick(60s), {}, [](RankContext& c) {
    const Buffers buffers(c);
    buffers.set->share(*c.world);
    buffers.use(*c.world, c.device->compute());
    EXPECT_EQ(buffers.set->describe(), "");
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().blocks + fake_nccl::log().windows, 0);
}

}  // namespace
}  // namespace sherd::test
