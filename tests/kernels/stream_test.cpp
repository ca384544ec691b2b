#include <gtest/gtest.h>
#include <omp.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "support/message_of.h"

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

template <class F>
std::string failure_of(F f) {
  return message_of<InvalidArgument>([&] { f(); });
}

TEST_F(StreamTest, FailurePoisonsTheStreamAndItsDependants) {
  auto other = device->make_stream("comm");
  Gate gate;
  Event good = s.record();
  s.submit("gate", gate.work());
  s.submit("fail", [](ExecutionContext&) { throw InvalidArgument("the cause"); });
  bool ran = false;
  s.submit("after", [&](ExecutionContext&) { ran = true; });
  Event bad = s.record();
  other->wait(bad);
  other->submit("dependant", [&](ExecutionContext&) { ran = true; });
  gate.open();
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(failure_of([&] { s.synchronize(); }), "the cause");
    EXPECT_EQ(failure_of([&] { other->synchronize(); }), "the cause");
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(bad.done());  // complete, with the failure
  EXPECT_THROW(bad.synchronize(), InvalidArgument);
  good.synchronize();  // recorded before the failure
}

TEST_F(StreamTest, AFailureIsThrownByTheNextCall) {
  auto other = device->make_stream("comm");
  Event after_other = other->record();
  s.submit("fail", [](ExecutionContext&) { throw InvalidArgument("the cause"); });
  int queued = 0;
  const std::string seen = failure_of([&] {
    for (; queued < 1'000'000; ++queued) s.submit("after", [](ExecutionContext&) {});
  });
  EXPECT_EQ(seen, "the cause");
  EXPECT_LT(queued, 1'000'000);
  EXPECT_EQ(failure_of([&] { s.submit("after", [](ExecutionContext&) {}); }), "the cause");
  EXPECT_EQ(failure_of([&] { (void)s.record(); }), "the cause");
  EXPECT_EQ(failure_of([&] { s.wait(after_other); }), "the cause");
  other->submit("fine", [](ExecutionContext&) {});
  other->synchronize();
}

TEST_F(StreamTest, AnUnreportedFailureIsThrownByCompute) {
  {
    auto other = device->make_stream("copies");
    auto third = device->make_stream("third");
    Gate gate;
    other->submit("gate", gate.work());
    other->submit("fail", [](ExecutionContext&) { throw InvalidArgument("unseen"); });
    third->wait(other->record());  // has the same failure
    gate.open();
  }
  EXPECT_EQ(failure_of([&] { s.synchronize(); }), "unseen");
  s.synchronize();  // once is enough
  {
    auto other = device->make_stream("copies");
    other->submit("fail", [](ExecutionContext&) { throw InvalidArgument("seen"); });
    EXPECT_EQ(failure_of([&] { other->synchronize(); }), "seen");
  }
  s.synchronize();
}

TEST(CpuDevice, ReportsAFailureWithoutALaterWait) {
  testing::internal::CaptureStderr();
  {
    auto device = make_cpu_device();
    device->compute().submit("fail", [](ExecutionContext&) { throw InvalidArgument("unseen"); });
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sherd: an operation of a stream failed without a later wait to report it: unseen\n");
  testing::internal::CaptureStderr();
  {
    auto device = make_cpu_device();
    device->compute().submit("fail", [](ExecutionContext&) { throw InvalidArgument("seen"); });
    EXPECT_THROW(device->compute().synchronize(), InvalidArgument);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

struct BackPressureTest : testing::Test {
  std::shared_ptr<Device> device = make_cpu_device({.max_queued_work = 8, .max_queued_bytes = 4096});
  Stream& s = device->compute();
  RunAhead& ahead = device->run_ahead();
};

TEST_F(BackPressureTest, AStreamTakesNoMoreThanTheOptionSays) {
  Gate gate;
  s.submit("gate", gate.work());
  std::atomic<int> queued = 0;
  std::jthread host([&] {
    for (int i = 0; i < 100; ++i) {
      s.submit("more", [](ExecutionContext&) {});
      ++queued;
    }
  });
  while (ahead.waits() == 0) std::this_thread::yield();
  EXPECT_EQ(queued, 7);
  gate.open();
  host.join();
  s.synchronize();
  EXPECT_LE(ahead.peak_work(), 8);
  EXPECT_GE(ahead.waits(), 1);
}

TEST_F(BackPressureTest, WorkMayQueueWorkBehindItself) {
  int ran = 0;
  s.submit("many", [&](ExecutionContext&) {
    for (int i = 0; i < 20; ++i) s.submit("more", [&](ExecutionContext&) { ++ran; });
  });
  s.synchronize();
  s.synchronize();  // behind what the work has queued
  EXPECT_EQ(ran, 20);
}

TEST_F(BackPressureTest, CopiesFromTheHostAreBoundedInBytesAndCounted) {
  const Tensor t = Tensor::empty(*device, {256}, DType::f32, "test");
  const std::vector<float> ones(256, 1);
  Gate gate;
  s.submit("gate", gate.work());
  std::jthread host([&] {
    for (int i = 0; i < 6; ++i) ops::copy_from_host(s, t, ones.data(), 1024);
  });
  while (ahead.waits() == 0) std::this_thread::yield();
  EXPECT_EQ(device->copies().live_bytes("copies from the host"), 4096);
  gate.open();
  host.join();
  const Tensor large = Tensor::empty(*device, {4096}, DType::f32, "test");
  const std::vector<float> more(4096, 2);
  ops::copy_from_host(s, large, more.data(), 4 * 4096);  // alone
  EXPECT_EQ(ops::to_floats(s, large), more);
  EXPECT_EQ(ahead.peak_bytes(), 4 * 4096);
  EXPECT_EQ(device->copies().live_bytes(), 0);
}

TEST(BackPressure, StreamsThatWaitForEachOtherNeedRoomForOnePieceOnly) {
  auto device = make_cpu_device({.max_queued_work = 1});
  Stream& s = device->compute();
  auto other = device->make_stream("other");
  int64_t value = 0;
  for (int i = 0; i < 200; ++i) {
    s.submit("add", [&](ExecutionContext&) { ++value; });
    other->wait(s.record());
    other->submit("double", [&](ExecutionContext&) { value = (2 * value) % 1'000'003; });
    s.wait(other->record());
  }
  s.synchronize();
  int64_t expected = 0;
  for (int i = 0; i < 200; ++i) expected = 2 * (expected + 1) % 1'000'003;
  EXPECT_EQ(value, expected);
  EXPECT_EQ(device->run_ahead().peak_work(), 1);
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

TEST_F(StreamTest, DestructorOfAFailedStreamDoesNotThrow) {
  {
    auto other = device->make_stream("failing");
    other->submit("fail", [](ExecutionContext&) { throw Error("unseen"); });
  }
  EXPECT_THROW(s.synchronize(), Error);
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

// The host is ahead of the worker: what a sum of both blocks would meet differs from run to run.
TEST_F(StreamTest, GrowingScratchIsNotHeldTwice) {
  device->allocator().reset_peak();
  const int64_t before = device->allocator().peak_bytes();
  s.submit("scratch", [](ExecutionContext& c) {
    c.scratch(60000);
    c.scratch(100000);
  });
  s.synchronize();
  EXPECT_EQ(device->allocator().peak_bytes() - before, Allocator::rounded(100000));
}

TEST_F(StreamTest, EventsOfAnIdleStreamAreDoneAtOnce) {
  const auto idle = device->make_stream("idle");
  const Event event = idle->record();
  EXPECT_TRUE(event.done());
  idle->synchronize();
  EXPECT_EQ(device->host_syncs(), 1);
}

TEST_F(StreamTest, DoneEventsMeanThatCapturesAreReleased) {
  for (int i = 0; i < 1000; ++i) {
    const auto held = std::make_shared<int>(i);
    s.submit("hold", [held](ExecutionContext&) {});
    if (i % 2 == 0) {
      s.synchronize();
    } else {
      while (!s.record().done()) std::this_thread::yield();
    }
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST_F(StreamTest, ThreadsThatShareStreamsSeeEarlierWork) {
  constexpr int kThreads = 4, kRounds = 500;
  const auto first = device->make_stream("first"), second = device->make_stream("second");
  int written[kThreads] = {}, read[kThreads] = {};
  {
    std::vector<std::jthread> hosts;
    for (int t = 0; t < kThreads; ++t)
      hosts.emplace_back([&, t] {
        for (int i = 1; i <= kRounds; ++i) {
          first->submit("write", [&written, t](ExecutionContext&) { ++written[t]; });
          const Event write = first->record();
          second->wait(write);
          second->submit("read", [&written, &read, t](ExecutionContext&) { read[t] += written[t]; });
          if (write.done()) {
            EXPECT_EQ(written[t], i);
          }
          if ((i + t) % 7 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(50));  // streams become idle
          first->wait(second->record());
        }
      });
  }
  first->synchronize();
  second->synchronize();
  for (const int sum : read) EXPECT_EQ(sum, kRounds * (kRounds + 1) / 2);
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

/// compute() with the team of the threads that call it.
struct CallersTeam : testing::Test {
  CallersTeam() { device->use_callers_team(); }
  static std::function<void(ExecutionContext&)> look(std::thread::id& thread, int& threads) {
    return [&](ExecutionContext& c) {
      thread = std::this_thread::get_id();
      threads = c.threads;
      EXPECT_EQ(omp_get_max_threads(), threads) << "of libraries";
    };
  }
  std::shared_ptr<Device> device = make_cpu_device({.threads = 2, .max_queued_work = 4});
  Stream& s = device->compute();
  const std::thread::id here = std::this_thread::get_id();
  std::thread::id thread;
  int threads = 0;
};

TEST_F(CallersTeam, RunsOperations) {
  omp_set_num_threads(3);
  s.submit("look", look(thread, threads));
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_EQ(thread, here);
  EXPECT_EQ(threads, 2);
  EXPECT_TRUE(s.record().done());
  const auto other = device->make_stream("other");
  other->submit("look", look(thread, threads));
  s.wait(other->record());
  EXPECT_NE(thread, here);
  EXPECT_EQ(threads, 1);
}

TEST_F(CallersTeam, OfOneThreadRunsOperations) {
  const auto one = make_cpu_device();
  one->use_callers_team();
  one->compute().submit("look", look(thread, threads));
  EXPECT_EQ(thread, here);
  EXPECT_EQ(threads, 1);
}

TEST_F(CallersTeam, RunsNothingBeforeWhatIsPending) {
  Gate gate;
  std::atomic<bool> running = false;
  std::vector<int> seen;
  std::jthread first([&] {
    s.submit("first", [&](ExecutionContext&) {
      running = true;
      gate.future.wait();
      seen.push_back(0);
    });
  });
  while (!running) std::this_thread::yield();
  EXPECT_FALSE(s.record().done());  // the worker has it
  std::jthread opens([&] { gate.open(); });
  s.submit("second", [&](ExecutionContext& c) {
    seen.push_back(1);
    look(thread, threads)(c);
  });
  EXPECT_EQ(seen, (std::vector{0, 1}));
  EXPECT_EQ(thread, here);
}

TEST_F(CallersTeam, WorkMayQueueWorkBehindItself) {
  int ran = 0;
  s.submit("many", [&](ExecutionContext&) {
    for (int i = 0; i < 20; ++i) s.submit("more", [&](ExecutionContext&) { ++ran; });
    EXPECT_EQ(ran, 0);
  });
  s.synchronize();
  EXPECT_EQ(ran, 20);
}

TEST_F(CallersTeam, WorkOfOtherStreamsDoesNotWaitForIt) {
  const auto other = device->make_stream("other");
  Gate gate;
  bool ran = false;
  other->submit("queues", [&](ExecutionContext&) {
    gate.future.wait();
    s.submit("more", [&](ExecutionContext&) { ran = true; });
  });
  s.submit("waits", [&](ExecutionContext&) {
    gate.open();
    other->record().synchronize();
  });
  s.synchronize();
  EXPECT_TRUE(ran);
}

TEST_F(CallersTeam, FailuresAreThoseOfTheWorker) {
  s.submit("fail", [](ExecutionContext&) { throw Error("broken"); });
  EXPECT_THROW(s.submit("look", look(thread, threads)), Error);
  EXPECT_THROW(s.synchronize(), Error);
  EXPECT_EQ(threads, 0);
  EXPECT_NE(s.reset_failure(), nullptr);
  s.submit("look", look(thread, threads));
  EXPECT_EQ(thread, here);
  Gate gate;
  const auto other = device->make_stream("other");
  other->submit("gate", gate.work());
  other->submit("fail", [](ExecutionContext&) { throw Error("broken, too"); });
  const Event failed = other->record();
  gate.open();
  s.wait(failed);
  EXPECT_THROW(s.synchronize(), Error);
}

TEST_F(CallersTeam, ThreadsThatShareTheStreamRunOneOperationAtATime) {
  constexpr int kThreads = 4, kRounds = 2000;
  int64_t count = 0;  // not atomic: the stream orders operations
  {
    std::vector<std::jthread> hosts;
    for (int t = 0; t < kThreads; ++t)
      hosts.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) s.submit("count", [&](ExecutionContext&) { ++count; });
      });
  }
  s.synchronize();
  EXPECT_EQ(count, kThreads * kRounds);
}

TEST(CpuDevice, RejectsBadOptions) {
  EXPECT_THROW((void)make_cpu_device({.threads = -1}), InvalidArgument);
  EXPECT_THROW((void)make_cpu_device({.kernels = static_cast<KernelSet>(7)}), InvalidArgument);
  EXPECT_THROW((void)make_cpu_device({.max_queued_work = 0}), InvalidArgument);
  EXPECT_THROW((void)make_cpu_device({.max_queued_bytes = 0}), InvalidArgument);
}

}  // namespace
}  // namespace sherd
