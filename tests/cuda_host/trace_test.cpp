// Traces of a device that has a clock of its own.
#include <gtest/gtest.h>
#include <sherd/kernels/device/trace.h>
#include <sherd/kernels/ops.h>

#include <chrono>
#include <thread>

#include "fake.h"

namespace sherd {
namespace {

struct CudaTrace : testing::Test {
  void start() {
    device = make_cuda_device({.label = "rank 1"});
    trace = std::make_shared<Trace>();
    device->set_trace(trace);
    trace->set_enabled(true);
  }
  std::shared_ptr<Device> device;
  std::shared_ptr<Trace> trace;
};

TEST_F(CudaTrace, TimesAreTheHosts) {
  start();
  Stream& s = device->compute();
  const Tensor t = Tensor::empty(*device, {1000}, DType::f32, "test");
  const double before = Trace::now();
  for (int i = 0; i < 20; ++i) ops::fill(s, t, i);
  s.submit("sleep", [](ExecutionContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  s.synchronize();
  const double after = Trace::now();
  const auto records = trace->records();
  ASSERT_EQ(records.size(), 21u);
  constexpr double kError = 1e3;  // of the base event's time, when the machine is busy
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].device, "rank 1");
    EXPECT_LE(records[i].begin, records[i].end);
    EXPECT_GE(records[i].begin, before - kError);
    EXPECT_LE(records[i].end, after + kError);
    if (i > 0) {
      EXPECT_LE(records[i - 1].end, records[i].begin + 0.5);  // the device counts half microseconds
    }
  }
  EXPECT_GE(records[20].end - records[20].begin, 19.9e3);
}

TEST_F(CudaTrace, EventsAreUsedAgainAndGoBack) {
  const auto before = cuda_host::live();
  start();
  const Tensor t = Tensor::empty(*device, {10}, DType::f32, "test");
  for (int i = 0; i < 5000; ++i) ops::fill(device->compute(), t, i);
  device->compute().synchronize();
  EXPECT_LT(cuda_host::live().events - before.events, 600);
  EXPECT_EQ(trace->records().size(), 5000u);
}

TEST_F(CudaTrace, NothingIsLeftOfIt) {
  const auto before = cuda_host::live();
  start();
  ops::fill(device->compute(), Tensor::empty(*device, {10}, DType::f32, "test"), 1);
  device->compute().synchronize();
  device.reset();  // the trace may outlive the device
  EXPECT_EQ(trace->records().size(), 1u);
  trace.reset();
  EXPECT_EQ(cuda_host::live(), before);
}

TEST_F(CudaTrace, AnEventThatFailsFailsTheStream) {
  start();
  const Tensor t = Tensor::empty(*device, {10}, DType::f32, "test");
  ops::fill(device->compute(), t, 1);
  device->compute().synchronize();
  cuda_host::fail_call("cudaEventRecord", 1, 719);
  ops::fill(device->compute(), t, 2);
  EXPECT_THROW(device->compute().synchronize(), CudaError);
  cuda_host::fail_nothing();
}

TEST_F(CudaTrace, WithoutOneNoEventWithATimeIsMade) {
  device = make_cuda_device();
  const Tensor t = Tensor::empty(*device, {10}, DType::f32, "test");
  ops::fill(device->compute(), t, 1);
  device->compute().synchronize();
  cuda_host::reset_calls();
  for (int i = 0; i < 10; ++i) ops::fill(device->compute(), t, i);
  device->compute().synchronize();
  EXPECT_EQ(cuda_host::calls()["cudaEventRecord"], 1);  // synchronize()'s
  EXPECT_EQ(cuda_host::calls()["cudaEventElapsedTime"], 0);
}

}  // namespace
}  // namespace sherd
