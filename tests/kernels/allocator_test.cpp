#include <sherd/base/error.h>
#include <sherd/kernels/device/allocator.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/message_of.h"

namespace sherd {
namespace {

constexpr MemoryClass kKind = MemoryClass::activation;

TEST(Allocator, RoundsTo128BytesAndAligns) {
  EXPECT_EQ(Allocator::rounded(0), 128);
  EXPECT_EQ(Allocator::rounded(128), 128);
  EXPECT_EQ(Allocator::rounded(129), 256);
  Allocator a("rank 0");
  void* p = a.allocate(1, kKind, "x");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 128, 0u);
  EXPECT_EQ(a.live_bytes(), 128);
  a.release(p);
  EXPECT_EQ(a.live_bytes(), 0);
}

TEST(Allocator, TracksPeaksPerName) {
  Allocator a("rank 0");
  void* p = a.allocate(1000, kKind, "grad");
  void* q = a.allocate(1000, kKind, "grad");
  void* r = a.allocate(128, kKind, "state");
  a.release(q);
  EXPECT_EQ(a.peak_bytes(), 2 * 1024 + 128);
  EXPECT_EQ(a.live_bytes(), 1024 + 128);
  EXPECT_EQ(a.live_bytes("gr"), 1024);
  EXPECT_EQ(a.live_bytes("grad"), 1024);
  EXPECT_EQ(a.live_bytes("z"), 0);
  const auto table = a.table();
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].name, "grad");  // largest peak first
  EXPECT_EQ(table[0].bytes, 1024);
  EXPECT_EQ(table[0].peak_bytes, 2048);
  EXPECT_EQ(table[0].peak_count, 2);
  a.reset_peak();
  EXPECT_EQ(a.peak_bytes(), 1024 + 128);
  EXPECT_EQ(a.table()[0].peak_bytes, 1024);
  EXPECT_THAT(a.format_table(), AllOf(HasSubstr("rank 0"), HasSubstr("grad"), HasSubstr("state")));
  a.release(p);
  a.release(r);
}

/// Counts its calls.
class Counting final : public MemorySource {
 public:
  explicit Counting(int& calls) : calls_(calls) {}
  void* allocate(int64_t bytes) override {
    ++calls_;
    return host_->allocate(bytes);
  }
  void release(void* p, int64_t bytes) noexcept override {
    ++calls_;
    host_->release(p, bytes);
  }
  std::string owner() const override { return "the test"; }

 private:
  int& calls_;
  const std::unique_ptr<MemorySource> host_ = host_memory();
};

TEST(Allocator, AStepWhoseBlocksAreReservedCallsTheSourceNoMore) {
  const auto step = [](Allocator& a) {
    std::vector<void*> live;
    for (int i = 0; i < 200; ++i) {
      live.push_back(a.allocate(int64_t{1} << (10 + i * 7 % 9), kKind, "step", i % 3 == 0));
      if (i % 4 == 3) a.release(live[static_cast<size_t>(i) / 2]), live[static_cast<size_t>(i) / 2] = nullptr;
    }
    for (void* p : live) a.release(p);
  };
  Allocator planned("plan");
  step(planned);
  int calls = 0;
  Allocator a("rank 0", 0, std::make_unique<Counting>(calls));
  a.reserve(planned.blocks());
  EXPECT_EQ(a.live_bytes(), 0);
  EXPECT_EQ(a.held_bytes(), planned.held_bytes());
  const int before = calls;
  step(a);
  EXPECT_EQ(calls, before);

  Allocator small("rank 0", 5000);
  small.reserve({4096, 2048, 128});  // 4096: what the limit has room for, largest first
  EXPECT_EQ(small.held_bytes(), 4096);
}

TEST(Allocator, EveryCallOfTheSourcePassesTheGateWithoutTheLock) {
  int calls = 0, passed = 0;
  bool open = false;
  Allocator a("rank 0", 4096, std::make_unique<Counting>(calls));
  {
    const auto gate = a.gate([&] {
      EXPECT_EQ(a.live_bytes() % 128, 0) << "takes the lock";
      EXPECT_FALSE(std::exchange(open, true)) << "one call at a time";
      ++passed;
      return std::shared_ptr<void>(&open, [](void* p) { *static_cast<bool*>(p) = false; });
    });
    void* const p = a.allocate(2048, kKind, "x");
    a.release(p, true);
    void* const q = a.allocate(4096, kKind, "y");  // p returns first
    EXPECT_EQ(passed, 3);
    EXPECT_EQ(calls, 3);
    a.release(q, true);
  }
  a.release(a.allocate(128, kKind, "z"), true);
  EXPECT_EQ(passed, 3);

  // Of several, each is passed until it goes, in any order.
  int first = 0, second = 0;
  auto one = a.gate([&] { return ++first, nullptr; }), two = a.gate([&] { return ++second, nullptr; });
  a.release(a.allocate(256, kKind, "u"), true);
  one = nullptr;
  a.release(a.allocate(512, kKind, "v"), true);
  two = nullptr;
  a.release(a.allocate(1024, kKind, "w"), true);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
}

TEST(Allocator, ReusesBlocksOfOneSize) {
  Allocator a("rank 0");
  void* p = a.allocate(1000, kKind, "x");
  a.release(p);
  void* q = a.allocate(1024, kKind, "y");  // the same rounded size
  EXPECT_EQ(p, q);
  void* r = a.allocate(1024, kKind, "y");
  EXPECT_NE(q, r);
  a.release(q);
  a.release(r);
}

TEST(Allocator, ReusesBlocksThatAreAnEighthTooLarge) {
  Allocator a("rank 0");
  void* p = a.allocate(9 * 1024, kKind, "x");
  a.release(p);
  void* small = a.allocate(7 * 1024, kKind, "x");
  EXPECT_NE(small, p) << "two ninths would lie waste";
  void* near = a.allocate(8 * 1024, kKind, "x");
  EXPECT_EQ(near, p);
  EXPECT_EQ(a.live_bytes(), 15 * 1024);
  EXPECT_EQ(a.held_bytes(), 16 * 1024);
  a.release(near);
  void* whole = a.allocate(9 * 1024, kKind, "x");
  EXPECT_EQ(whole, p) << "a block keeps its own size";
  a.release(whole);
  a.release(small);
  EXPECT_EQ(a.live_bytes(), 0);
  EXPECT_EQ(a.kept_bytes(), a.held_bytes());
}

// Shapes that vary from step to step: sizes that are asked for once must not be kept for ever.
TEST(Allocator, WhatIsKeptForReuseIsBounded) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  Allocator a("rank 0");
  uint64_t state = 1;
  for (int step = 0; step < 600; ++step) {
    std::vector<void*> live;
    for (int i = 0; i < 8; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const int64_t bytes = kMiB / 4 + static_cast<int64_t>(state >> 33) % (4 * kMiB);
      live.push_back(a.allocate(bytes, kKind, "x"));
    }
    for (void* p : live) a.release(p);
  }
  EXPECT_EQ(a.live_bytes(), 0);
  EXPECT_LE(a.peak_held_bytes(), a.peak_bytes() + a.peak_bytes() / 2 + kMiB);
  EXPECT_THAT(a.format_table(), HasSubstr("held, with what is kept for reuse"));
}

TEST(Allocator, TheLimitCountsWhatIsHeld) {
  Allocator a("rank 3", 1 << 20);
  void* p = a.allocate(600 << 10, kKind, "x");
  a.release(p);
  EXPECT_EQ(a.held_bytes(), 600 << 10);
  void* q = a.allocate(900 << 10, kKind, "x");  // too large for the kept block, and both do not fit
  EXPECT_EQ(a.held_bytes(), 900 << 10);
  a.release(q);
}

TEST(Allocator, KeepsNothingBeyondABoundThatLiveBytesMayPass) {
  Allocator a("rank 0");
  a.keep_within(4096);
  a.release(a.allocate(2048, kKind, "kept"));
  void* const more = a.allocate(3072, kKind, "more");
  EXPECT_EQ(a.held_bytes(), 3072) << "what was kept went back";
  void* const rest = a.allocate(2048, kKind, "rest");
  EXPECT_EQ(a.peak_held_bytes(), 5120);
  a.release(more);
  a.release(rest);
}

TEST(Allocator, FreshMemoryIsWithinTheLimitAlsoAfterBlocksWereReturned) {
  Allocator a("rank 3", 1 << 20);
  a.release(a.allocate(600 << 10, kKind, "x"));
  void* q = a.allocate(900 << 10, kKind, "x");  // returns the kept block
  EXPECT_THROW(a.allocate(500 << 10, kKind, "y", true), OutOfMemory);
  EXPECT_EQ(a.held_bytes(), 900 << 10);
  a.release(q);
}

TEST(Allocator, FreshMemoryIsUsedByNoQueuedWork) {
  struct Queue final : MemorySource {
    int64_t now = 0, done_now = 0;
    void* allocate(int64_t bytes) override { return std::aligned_alloc(128, static_cast<size_t>(bytes)); }
    void release(void* p, int64_t) noexcept override { std::free(p); }
    int64_t queued() const override { return now; }
    int64_t done() const override { return done_now; }
    void drain() override { ADD_FAILURE() << "fresh memory waits for nothing"; }
    std::string owner() const override { return "the test"; }
  };
  auto source = std::make_unique<Queue>();
  Queue& queue = *source;
  Allocator a("rank 0", 0, std::move(source));
  void* const p = a.allocate(1000, kKind, "x");
  queue.now = 5;  // uses p
  a.release(p);
  void* const q = a.allocate(1000, kKind, "x", true);
  EXPECT_NE(q, p);
  queue.done_now = 5;
  void* const r = a.allocate(1000, kKind, "x", true);
  EXPECT_EQ(r, p);
  queue.now = 6;
  a.release(r, true);
  EXPECT_EQ(a.allocate(1000, kKind, "x", true), r) << "its last user said that nothing uses it";
  a.release(r);
  a.release(q);
}

TEST(Allocator, LimitIsExactAndExplainsItself) {
  Allocator a("rank 3", 1024);
  void* p = a.allocate(896, kKind, "weights");
  void* q = a.allocate(128, kKind, "small");  // exactly full
  EXPECT_THAT(message_of<OutOfMemory>([&] { a.allocate(1, kKind, "straw"); }),
              AllOf(HasSubstr("rank 3"), HasSubstr("straw"), HasSubstr("1024"), HasSubstr("weights"),
                    HasSubstr("896")));
  EXPECT_EQ(a.live_bytes(), 1024);  // a failed request changes nothing
  a.release(q);
  void* r = a.allocate(1, kKind, "straw");
  a.release(r);
  a.release(p);
}

TEST(Allocator, RejectsNegativeSizes) {
  EXPECT_THROW(Allocator("x", -1), InvalidArgument);
  Allocator a("x");
  EXPECT_THROW(a.allocate(-1, kKind, "y"), InvalidArgument);
}

/// Two blocks of the host's memory, which queued work uses until drain(), and a list of what was given back.
class TwoBlocks final : public MemorySource {
 public:
  explicit TwoBlocks(std::vector<std::string>& log) : log_(log) {}
  void* allocate(int64_t bytes) override {
    if (held_ == 2) return nullptr;
    ++held_;
    return std::aligned_alloc(128, static_cast<size_t>(bytes));
  }
  void release(void* p, int64_t) noexcept override {
    --held_;
    log_.push_back("released");
    std::free(p);
  }
  int64_t queued() const override { return 1; }
  int64_t done() const override { return done_; }
  void drain() override {
    done_ = 1;
    log_.push_back("drained");
  }
  std::string owner() const override { return "the test"; }

 private:
  std::vector<std::string>& log_;
  int held_ = 0;
  int64_t done_ = 0;
};

TEST(Allocator, ARetryPassesTheGateAgain) {
  std::vector<std::string> log;
  Allocator a("rank 0", 0, std::make_unique<TwoBlocks>(log));
  int passed = 0, inside = 0;
  const auto gate = a.gate([&] {
    ++passed, ++inside;
    return std::shared_ptr<void>(&inside, [](void* p) { --*static_cast<int*>(p); });
  });
  void* const p = a.allocate(256, kKind, "x");
  void* const q = a.allocate(512, kKind, "y");
  a.release(p, true);
  EXPECT_EQ(passed, 2);
  void* const r = a.allocate(4096, kKind, "z");  // a refusal, the return of p, the block
  EXPECT_EQ(passed, 5);
  EXPECT_EQ(inside, 0);
  a.release(q, true);
  a.release(r, true);
}

TEST(Allocator, NotifiesListenersBeforeABlockIsReturned) {
  std::vector<std::string> log;
  {
    Allocator a("rank 0", 0, std::make_unique<TwoBlocks>(log));
    void* const p = a.allocate(1000, kKind, "x");
    void* const q = a.allocate(256, kKind, "y");
    auto told = a.on_return([&](const void* block, int64_t bytes) {
      log.push_back((block == p ? "p of " : "another of ") + std::to_string(bytes));
    });
    a.release(p);
    EXPECT_EQ(log, std::vector<std::string>{}) << "kept for reuse";
    void* const r = a.allocate(512, kKind, "z");
    EXPECT_EQ(log, (std::vector<std::string>{"drained", "p of 1024", "released"}));
    told.reset();
    a.release(q);
    a.release(r);
  }
  EXPECT_EQ(log.size(), 5u) << "nobody listens at the end";
}

TEST(Allocator, MemoryOfAnotherSourceIsCountedAndGoesBackThereWhenNoQueuedWorkUsesIt) {
  struct Queue final : MemorySource {
    int64_t now = 0, done_now = 0, blocks = 0;
    void* allocate(int64_t bytes) override {
      ++blocks;
      return std::aligned_alloc(128, static_cast<size_t>(bytes));
    }
    void release(void* p, int64_t) noexcept override {
      --blocks;
      std::free(p);
    }
    int64_t queued() const override { return now; }
    int64_t done() const override { return done_now; }
    void drain() override { done_now = now; }
    std::string owner() const override { return "the test"; }
  };
  auto own = std::make_unique<Queue>();
  Queue& queue = *own;
  const auto other = std::make_shared<Queue>();
  int told = 0;
  Allocator a("rank 0", 4096, std::move(own));
  const auto listening = a.on_return([&](const void*, int64_t) { ++told; });
  void* const p = a.allocate_from(other, 1000, kKind, "x");
  EXPECT_EQ(a.live_bytes("x"), 1024);
  EXPECT_EQ(a.held_bytes(), 1024);
  EXPECT_THROW(a.allocate_from(other, 3200, kKind, "y"), OutOfMemory)
      << "above the limit with the block that is there";
  EXPECT_EQ(other->blocks, 1);
  queue.now = 5;  // uses p
  a.release(p);
  EXPECT_EQ(a.live_bytes(), 0);
  EXPECT_EQ(a.held_bytes(), 1024) << "queued work uses it";
  void* const q = a.allocate(1000, kKind, "x");
  EXPECT_NE(q, p) << "not kept for reuse";
  EXPECT_EQ(other->blocks, 1);
  void* const r = a.allocate(3000, kKind, "z");  // for which the queue has to run dry
  EXPECT_EQ(other->blocks, 0);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(a.held_bytes(), 1024 + 3072);
  a.release(q);
  a.release(r);
}

// A callback of the device asks for the peak while another thread waits for the device inside allocate().
TEST(Allocator, ThePeakIsReadWithoutALock) {
  struct Waiting final : MemorySource {
    Allocator* allocator = nullptr;
    int64_t peak = -1;
    void* allocate(int64_t bytes) override {
      std::thread([&] { peak = allocator->peak_bytes(); }).join();
      return std::aligned_alloc(128, static_cast<size_t>(bytes));
    }
    void release(void* p, int64_t) noexcept override { std::free(p); }
    std::string owner() const override { return "the test"; }
  };
  auto source = std::make_unique<Waiting>();
  Waiting& waiting = *source;
  Allocator a("rank 0", 0, std::move(source));
  waiting.allocator = &a;
  void* const p = a.allocate(1000, kKind, "x");
  EXPECT_EQ(waiting.peak, 0);
  void* const q = a.allocate(128, kKind, "x");
  EXPECT_EQ(waiting.peak, 1024);
  a.release(p);
  a.release(q);
}

TEST(Allocator, CountsBytesByClass) {
  Allocator a("rank 0");
  void* p = a.allocate(1000, MemoryClass::gradient, "sums");
  void* q = a.allocate(128, MemoryClass::gradient, "whole sums");
  void* r = a.allocate(256, MemoryClass::optimizer, "momentum");
  EXPECT_EQ(a.live_bytes(MemoryClass::gradient), 1024 + 128);
  EXPECT_EQ(a.live_bytes(MemoryClass::optimizer), 256);
  EXPECT_EQ(a.live_bytes(MemoryClass::scratch), 0);
  a.release(p);
  EXPECT_EQ(a.live_bytes(MemoryClass::gradient), 128);
  EXPECT_EQ(a.peak_bytes(MemoryClass::gradient), 1024 + 128);
  a.reset_peak();
  EXPECT_EQ(a.peak_bytes(MemoryClass::gradient), 128);
  EXPECT_EQ(a.peak_bytes(MemoryClass::optimizer), 256);
  int64_t sum = 0;
  for (const MemoryClass kind : kMemoryClasses) sum += a.live_bytes(kind);
  EXPECT_EQ(sum, a.live_bytes());
  a.release(q);
  a.release(r);
}

// One name may serve two purposes: the lines of the table are of a name and a class.
TEST(Allocator, TheTableSeparatesClassesOfOneName) {
  Allocator a("rank 0");
  void* p = a.allocate(256, MemoryClass::message, "x");
  void* q = a.allocate(128, MemoryClass::scratch, "x");
  const auto table = a.table();
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].kind, MemoryClass::message);
  EXPECT_EQ(table[0].peak_bytes, 256);
  EXPECT_EQ(table[1].kind, MemoryClass::scratch);
  EXPECT_EQ(table[1].peak_bytes, 128);
  EXPECT_EQ(a.live_bytes("x"), 256 + 128);
  a.release(p);
  a.release(q);
}

// The address space of the process, in bytes.
int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

TEST(HostMemory, LargeBlocksBeginAtLargePagesAndGoBackWhole) {
  if (TEST_ASAN) GTEST_SKIP() << "all memory is malloc's under AddressSanitizer";
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto memory = host_memory();
  mapped_bytes();  // whatever the first reading maps
  for (const int64_t bytes : {4 * kMiB, 4 * kMiB + 128, 5 * kMiB - 128, 6 * kMiB + 4096, 32 * kMiB}) {
    const int64_t before = mapped_bytes();
    auto* const p = static_cast<volatile char*>(memory->allocate(bytes));
    ASSERT_NE(p, nullptr);
    p[0] = 1;
    p[bytes - 1] = 1;
    const int64_t held = mapped_bytes() - before;
    memory->release(const_cast<char*>(p), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (2 * kMiB), 0u);
    EXPECT_GE(held, bytes);
    EXPECT_LT(held, bytes + 4096) << "what was mapped beside the block, to find the boundary, has gone back";
    EXPECT_EQ(mapped_bytes(), before);
  }
}

TEST(MemoryClass, HasNames) {
  for (size_t i = 0; i < kMemoryClasses.size(); ++i) EXPECT_EQ(static_cast<size_t>(kMemoryClasses[i]), i);
  EXPECT_EQ(name_of(MemoryClass::parameter), "parameter");
  EXPECT_EQ(name_of(MemoryClass::scratch), "scratch");
}

TEST(Allocator, ServesThreads) {
  Allocator a("rank 0");
  auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      void* p = a.allocate(256, kKind, "x");
      *static_cast<int*>(p) = i;
      a.release(p);
    }
  };
  std::thread t(work);
  work();
  t.join();
  EXPECT_EQ(a.live_bytes(), 0);
  EXPECT_LE(a.peak_bytes(), 512);
}

}  // namespace
}  // namespace sherd
