#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/kernels/allocator.h>
#include <sherd/kernels/error.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace sherd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Allocator, RoundsTo128BytesAndAligns) {
  EXPECT_EQ(Allocator::rounded(0), 128);
  EXPECT_EQ(Allocator::rounded(128), 128);
  EXPECT_EQ(Allocator::rounded(129), 256);
  Allocator a("rank 0");
  void* p = a.allocate(1, "x");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 128, 0u);
  EXPECT_EQ(a.live_bytes(), 128);
  a.release(p, 1, "x");
  EXPECT_EQ(a.live_bytes(), 0);
}

TEST(Allocator, TracksPeaksPerName) {
  Allocator a("rank 0");
  void* p = a.allocate(1000, "grad");
  void* q = a.allocate(1000, "grad");
  void* r = a.allocate(128, "state");
  a.release(q, 1000, "grad");
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
  a.release(p, 1000, "grad");
  a.release(r, 128, "state");
}

TEST(Allocator, ReusesBlocksOfOneSize) {
  Allocator a("rank 0");
  void* p = a.allocate(1000, "x");
  a.release(p, 1000, "x");
  void* q = a.allocate(1024, "y");  // the same rounded size
  EXPECT_EQ(p, q);
  void* r = a.allocate(1024, "y");
  EXPECT_NE(q, r);
  a.release(q, 1024, "y");
  a.release(r, 1024, "y");
}

TEST(Allocator, LimitIsExactAndExplainsItself) {
  Allocator a("rank 3", 1024);
  void* p = a.allocate(896, "weights");
  void* q = a.allocate(128, "small");  // exactly full
  try {
    a.allocate(1, "straw");
    FAIL() << "the limit was passed";
  } catch (const OutOfMemory& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 3"), HasSubstr("straw"), HasSubstr("1024"),
                                HasSubstr("weights"), HasSubstr("896")));
  }
  EXPECT_EQ(a.live_bytes(), 1024);  // a failed request changes nothing
  a.release(q, 128, "small");
  void* r = a.allocate(1, "straw");
  a.release(r, 1, "straw");
  a.release(p, 896, "weights");
}

TEST(Allocator, RejectsNegativeSizes) {
  EXPECT_THROW(Allocator("x", -1), InvalidArgument);
  Allocator a("x");
  EXPECT_THROW(a.allocate(-1, "y"), InvalidArgument);
}

/// Two blocks of the host's memory, and a list of what was given back.
class TwoBlocks final : public MemorySource {
 public:
  explicit TwoBlocks(std::vector<std::string>& log) : log_(log) {}
  void* allocate(int64_t bytes) override {
    if (held_ == 2) return nullptr;
    ++held_;
    return std::aligned_alloc(128, static_cast<size_t>(bytes));
  }
  void release(void* p) noexcept override {
    --held_;
    log_.push_back("released");
    std::free(p);
  }
  void drain() override { log_.push_back("drained"); }
  std::string owner() const override { return "the test"; }

 private:
  std::vector<std::string>& log_;
  int held_ = 0;
};

TEST(Allocator, TellsWhoListensBeforeABlockGoesBack) {
  std::vector<std::string> log;
  {
    Allocator a("rank 0", 0, std::make_unique<TwoBlocks>(log));
    void* const p = a.allocate(1000, "x");
    void* const q = a.allocate(256, "y");
    auto told = a.on_return([&](const void* block, int64_t bytes) {
      log.push_back((block == p ? "p of " : "another of ") + std::to_string(bytes));
    });
    a.release(p, 1000, "x");
    EXPECT_EQ(log, std::vector<std::string>{}) << "kept for reuse";
    void* const r = a.allocate(512, "z");
    EXPECT_EQ(log, (std::vector<std::string>{"drained", "p of 1024", "released"}));
    told.reset();
    a.release(q, 256, "y");
    a.release(r, 512, "z");
  }
  EXPECT_EQ(log.size(), 5u) << "nobody listens at the end";
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
    void release(void* p) noexcept override { std::free(p); }
    std::string owner() const override { return "the test"; }
  };
  auto source = std::make_unique<Waiting>();
  Waiting& waiting = *source;
  Allocator a("rank 0", 0, std::move(source));
  waiting.allocator = &a;
  void* const p = a.allocate(1000, "x");
  EXPECT_EQ(waiting.peak, 0);
  void* const q = a.allocate(128, "x");
  EXPECT_EQ(waiting.peak, 1024);
  a.release(p, 1000, "x");
  a.release(q, 128, "x");
}

TEST(Allocator, ServesThreads) {
  Allocator a("rank 0");
  auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      void* p = a.allocate(256, "x");
      *static_cast<int*>(p) = i;
      a.release(p, 256, "x");
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
