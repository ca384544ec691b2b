#include <gtest/gtest.h>
#include <sherd/kernels/tensor.h>

#include <atomic>
#include <future>
#include <thread>

namespace sherd {
namespace {

/// Work that blocks its stream until open() is called.
struct Gate {
  std::promise<void> promise;
  std::shared_future<void> future = promise.get_future().share();
  void open() { promise.set_value(); }
  auto work() {
    return [f = future](ExecutionContext&) { f.wait(); };
  }
};

struct StreamTest : testing::Test {
  std::shared_ptr<Device> device = make_cpu_device();
  Stream& s = device->compute();
};

TEST_F(StreamTest, RunsWorkInOrder) {
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i) s.submit("push", [&, i](ExecutionContext&) { seen.push_back(i); });
  s.synchronize();
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_F(StreamTest, SubmitDoesNotWait) {
  Gate gate;
  s.submit("gate", gate.work());
  Event e = s.record();
  EXPECT_FALSE(e.done());
  gate.open();
  e.synchronize();
  EXPECT_TRUE(e.done());
}

TEST_F(StreamTest, AnEventCoversOnlyEarlierWork) {
  Gate gate;
  Event before = s.record();
  s.submit("gate", gate.work());
  before.synchronize();  // would hang if it waited for the gate
  gate.open();
}

TEST_F(StreamTest, DefaultEventIsComplete) {
  Event e;
  EXPECT_TRUE(e.done());
  e.synchronize();
  s.wait(e);
  s.synchronize();
}

TEST_F(StreamTest, StreamsRunConcurrentlyAndWaitForEvents) {
  auto other = device->make_stream("comm");
  EXPECT_EQ(other->name(), "comm");
  EXPECT_EQ(&other->device(), device.get());
  Gate gate;
  int value = 0;
  s.submit("gate", gate.work());
  s.submit("write", [&](ExecutionContext&) { value = 42; });
  int read = 0;
  std::atomic<bool> early = false;
  other->submit("early", [&](ExecutionContext&) { early = true; });
  other->synchronize();  // compute is still behind its gate
  EXPECT_TRUE(early);
  other->wait(s.record());
  other->submit("read", [&](ExecutionContext&) { read = value; });
  gate.open();
  other->synchronize();
  EXPECT_EQ(read, 42);
}

TEST_F(StreamTest, FailurePoisonsTheStreamAndItsDependants) {
  auto other = device->make_stream("comm");
  Event good = s.record();
  s.submit("fail", [](ExecutionContext&) { throw InvalidArgument("the cause"); });
  bool ran = false;
  s.submit("after", [&](ExecutionContext&) { ran = true; });
  Event bad = s.record();
  other->wait(bad);
  other->submit("dependant", [&](ExecutionContext&) { ran = true; });
  for (int twice = 0; twice < 2; ++twice) {
    try {
      s.synchronize();
      FAIL() << "synchronize() returned";
    } catch (const InvalidArgument& e) {
      EXPECT_STREQ(e.what(), "the cause");
    }
    EXPECT_THROW(other->synchronize(), InvalidArgument);
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(bad.done());  // complete, with the failure
  EXPECT_THROW(bad.synchronize(), InvalidArgument);
  good.synchronize();  // recorded before the failure
}

TEST_F(StreamTest, DestructorRunsTheQueue) {
  int count = 0;
  {
    auto other = device->make_stream("short");
    for (int i = 0; i < 10; ++i)
      other->submit("count", [&](ExecutionContext&) {
        std::this_thread::yield();
        ++count;
      });
  }
  EXPECT_EQ(count, 10);
}

TEST_F(StreamTest, DestructorOfAFailedStreamIsQuiet) {
  auto other = device->make_stream("failing");
  other->submit("fail", [](ExecutionContext&) { throw Error("unseen"); });
}

TEST_F(StreamTest, EventsOutliveTheirStream) {
  Event e;
  {
    auto other = device->make_stream("short");
    e = other->record();
  }
  e.synchronize();
  EXPECT_TRUE(e.done());
}

TEST_F(StreamTest, ScratchGrowsAndIsCounted) {
  s.submit("scratch", [](ExecutionContext& c) {
    auto* small = static_cast<char*>(c.scratch(1000));
    small[999] = 1;
    EXPECT_EQ(c.scratch(500), small);
    static_cast<char*>(c.scratch(100000))[99999] = 1;
  });
  s.synchronize();
  EXPECT_EQ(device->allocator().live_bytes("kernel scratch"), Allocator::rounded(100000));
}

TEST_F(StreamTest, HostWaitsAreCountedByThread) {
  const auto here = std::this_thread::get_id();
  const Event event = s.record();
  EXPECT_EQ(device->host_syncs(), 0);
  event.synchronize();
  s.synchronize();
  EXPECT_EQ(device->host_syncs(here), 2);
  std::thread([&] { event.synchronize(); }).join();
  EXPECT_EQ(device->host_syncs(here), 2);
  EXPECT_EQ(device->host_syncs(), 3);
}

TEST_F(StreamTest, ThreadsAreHandedToKernels) {
  auto two = make_cpu_device({.threads = 2});
  int threads = 0;
  two->compute().submit("look", [&](ExecutionContext& c) { threads = c.threads; });
  two->compute().synchronize();
  EXPECT_EQ(threads, 2);
}

TEST(CpuDevice, RejectsBadOptions) {
  EXPECT_THROW(make_cpu_device({.threads = 0}), InvalidArgument);
  EXPECT_THROW(make_cpu_device({.kernels = "gpu"}), InvalidArgument);
}

}  // namespace
}  // namespace sherd
