#include <gtest/gtest.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/device/trace.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

namespace sherd {
namespace {

struct TraceTest : testing::Test {
  void start(int64_t limit = Trace::kLimit) {
    trace = std::make_shared<Trace>(limit);
    device->set_trace(trace);
    trace->set_enabled(true);
  }
  std::vector<TraceRecord> of(const std::string& stream) {
    std::vector<TraceRecord> found;
    for (const TraceRecord& r : trace->records())
      if (r.stream == stream) found.push_back(r);
    return found;
  }
  static void nothing(ExecutionContext&) {}

  std::shared_ptr<Device> device = make_cpu_device({.label = "rank 3"});
  Stream& s = device->compute();
  std::shared_ptr<Trace> trace;
};

TEST_F(TraceTest, RecordsWhoDidWhatWhen) {
  start();
  const double before = Trace::now();
  s.submit("sleep", [](ExecutionContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  s.synchronize();
  const double after = Trace::now();
  const auto records = trace->records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].device, "rank 3");
  EXPECT_EQ(records[0].stream, "compute");
  EXPECT_EQ(records[0].what, "sleep");
  EXPECT_GE(records[0].begin, before);
  EXPECT_LE(records[0].end, after);
  EXPECT_GE(records[0].end - records[0].begin, 20e3);
}

TEST_F(TraceTest, WorkOfOneStreamFollowsInItsOrder) {
  start();
  const char* const names[] = {"a", "b", "c"};
  for (int i = 0; i < 300; ++i) s.submit(names[i % 3], nothing);
  s.synchronize();
  const auto records = of("compute");
  ASSERT_EQ(records.size(), 300u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].what, names[i % 3]);
    EXPECT_LE(records[i].begin, records[i].end);
    if (i > 0) {
      EXPECT_LE(records[i - 1].end, records[i].begin);
    }
  }
}

// Each waits inside its work until the other is there: they overlap, or hang.
TEST_F(TraceTest, OverlappingWorkOfTwoStreamsIntersects) {
  start();
  const auto side = device->make_stream("side");
  std::promise<void> here, there;
  s.submit("main work", [&](ExecutionContext&) {
    here.set_value();
    there.get_future().wait();
  });
  side->submit("side work", [&](ExecutionContext&) {
    there.set_value();
    here.get_future().wait();
  });
  s.synchronize();
  side->synchronize();
  const auto a = of("compute"), b = of("side");
  ASSERT_EQ(a.size(), 1u);
  ASSERT_EQ(b.size(), 1u);
  EXPECT_LT(std::max(a[0].begin, b[0].begin), std::min(a[0].end, b[0].end));
}

TEST_F(TraceTest, WaitingForAnEventIsNotWork) {
  start();
  const auto side = device->make_stream("side");
  s.submit("sleep", [](ExecutionContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  side->wait(s.record());
  side->submit("after", nothing);
  side->synchronize();
  const auto a = of("compute"), b = of("side");
  ASSERT_EQ(b.size(), 1u);
  EXPECT_EQ(b[0].what, "after");
  EXPECT_LE(a.at(0).end, b[0].begin);
}

TEST_F(TraceTest, OnlyWorkSubmittedWhileOnIsRecorded) {
  start();
  trace->set_enabled(false);
  std::promise<void> gate;
  auto open = gate.get_future().share();
  s.submit("before", [open](ExecutionContext&) { open.wait(); });
  trace->set_enabled(true);
  s.submit("during", nothing);
  trace->set_enabled(false);
  s.submit("after", nothing);
  gate.set_value();  // all three run only now
  s.synchronize();
  const auto records = trace->records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].what, "during");
}

TEST_F(TraceTest, ADeviceWithoutATraceRecordsNothing) {
  EXPECT_EQ(device->trace(), nullptr);
  s.submit("work", nothing);
  s.synchronize();
  start();
  EXPECT_TRUE(trace->records().empty());
  EXPECT_EQ(trace->left_out(), 0);
}

TEST_F(TraceTest, TheLimitIsKeptAndWhatItLeavesOutIsCounted) {
  start(5);
  const auto side = device->make_stream("side");
  for (int i = 0; i < 10; ++i) {
    s.submit("a", nothing);
    side->submit("b", nothing);
  }
  s.synchronize();
  side->synchronize();
  EXPECT_EQ(trace->records().size(), 5u);
  EXPECT_EQ(trace->left_out(), 15);
}

TEST_F(TraceTest, WorkThatFailsLeavesNoRecord) {
  start();
  s.submit("fine", nothing);
  s.submit("fails", [](ExecutionContext&) { throw std::runtime_error("here"); });
  const auto later = [&] {
    s.submit("dropped", nothing);  // throws where the failure is known already
    s.synchronize();
  };
  EXPECT_THROW(later(), std::runtime_error);
  const auto records = trace->records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].what, "fine");
}

/// A device's point in time, known once `*reached`.
class FakeStamp final : public NativeStamp {
 public:
  FakeStamp(double at, bool& reached, int& live) : at_(at), reached_(reached), live_(live) { ++live_; }
  ~FakeStamp() override { --live_; }
  bool done() const override { return reached_; }
  void synchronize() const override { reached_ = true; }
  double microseconds() const override {
    synchronize();
    return at_;
  }

 private:
  const double at_;
  bool& reached_;
  int& live_;
};

TEST_F(TraceTest, ADevicesTimesAreReadWhenItKnowsThem) {
  Trace t;
  auto& lane = t.open("rank 0", "compute");
  bool reached = false;
  int live = 0;
  const auto add = [&](int i) {
    lane.add("kernel", std::make_shared<FakeStamp>(2.0 * i, reached, live),
             std::make_shared<FakeStamp>(2.0 * i + 1, reached, live));
  };
  for (int i = 0; i < 500; ++i) add(i);
  EXPECT_EQ(live, 1000);  // the device has not caught up
  reached = true;
  add(500);
  EXPECT_LT(live, 300);  // few live on
  const auto records = t.records();
  EXPECT_EQ(live, 0);
  ASSERT_EQ(records.size(), 501u);
  for (int i = 0; i <= 500; ++i) {
    EXPECT_EQ(records[static_cast<size_t>(i)].begin, 2.0 * i);
    EXPECT_EQ(records[static_cast<size_t>(i)].end, 2.0 * i + 1);
  }
}

}  // namespace
}  // namespace sherd
