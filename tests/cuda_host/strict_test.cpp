// The strict driver ends a process that waits for ever, or that breaks NCCL's rules for several communicators, with the names
// of both sides.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "strict.h"

namespace cuda_host::strict {
namespace {

/// Each in a process of its own, which reads the environment anew.
struct StrictDriverDeath : testing::Test {
  StrictDriverDeath() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void begin() { ::setenv("SHERD_HOST_CUDA_STRICT", "1", 1); }
  static void allocate() {
    void* p = nullptr;
    cudaMalloc(&p, 64);
  }
};

TEST_F(StrictDriverDeath, AMemoryCallWaitsForCollectivesOfGpusThatNcclConnects) {
  const auto work = [](bool connected, bool ends) {
    begin();
    for (int device = 0; device < 2 && connected; ++device) connect(device);
    began(1, "ncclAllGather");
    std::thread later([] {});
    if (ends)
      later = (later.join(), std::thread([] {
                 std::this_thread::sleep_for(std::chrono::milliseconds(200));
                 ended(1, "ncclAllGather");
               }));
    cudaSetDevice(0);
    allocate();
    later.join();
    std::exit(7);
  };
  EXPECT_DEATH(work(true, false), "cudaMalloc on GPU 0 waits for ncclAllGather on GPU 1");
  EXPECT_EXIT(work(true, true), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(work(false, false), testing::ExitedWithCode(7), "");
}

TEST_F(StrictDriverDeath, AFullStreamHoldsUpLaunchesOfAllGpus) {
  const auto work = [](size_t launches) {
    begin();
    const auto queue = [](int device, size_t count) {
      cudaSetDevice(device);
      cudaStream_t stream = nullptr;
      cudaStreamCreate(&stream);
      cudaLaunchHostFunc(
          stream, [](void*) { std::this_thread::sleep_for(std::chrono::seconds(4)); }, nullptr);
      for (size_t i = 1; i < count; ++i)
        cudaLaunchHostFunc(
            stream, [](void*) {}, nullptr);
    };
    std::thread other(queue, 1, launches);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    queue(0, 2);
    std::_Exit(other.joinable() ? 7 : 0);
  };
  EXPECT_DEATH(work(kMostLaunches + 8),
               "a launch on GPU [01] waits for (room in a stream|a launch on GPU 1)");
  EXPECT_EXIT(work(kMostLaunches / 2), testing::ExitedWithCode(7), "");
}

TEST_F(StrictDriverDeath, CommunicatorsOfAGpuAreIssuedByOneThreadAtATimeInOneOrder) {
  static const int first = 0, second = 0;
  const auto issue = [](int device, const void* communicator) {
    const Call call(device, communicator == &first ? "ncclAllGather" : "ncclAllReduce", communicator, {0, 1});
  };
  EXPECT_DEATH(
      {
        begin();
        const Call call(0, "ncclAllGather", &first, {0, 1});
        std::thread(issue, 0, &second).join();
      },
      "ncclAllReduce and ncclAllGather are issued on GPU 0 at once, by two threads");
  EXPECT_DEATH(
      {
        begin();
        for (const void* c : {&first, &second}) issue(0, c);
        for (const void* c : {&second, &first}) issue(1, c);
      },
      "ncclAllReduce follows 0 operations of the communicator of ncclAllGather on GPU 1, 1 on GPU 0");
  EXPECT_EXIT(
      {
        begin();
        for (const int device : {0, 1, 2})
          for (const void* c : {&first, &second, &first}) issue(device, c);
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace cuda_host::strict
