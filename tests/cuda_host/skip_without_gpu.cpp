// Skips every test of a program on machines without a GPU.
#include <gtest/gtest.h>
#include <sherd/kernels/device/device.h>

#include <cstdio>

namespace {

struct NeedsGpu : testing::Environment {
  void SetUp() override {
    if (sherd::cuda_device_count() > 0) return;
    // An environment's skip leaves no mark on the tests themselves; ctest looks for this one.
    std::puts("[  SKIPPED ] every test");
    GTEST_SKIP() << "no CUDA device on this machine";
  }
};

[[maybe_unused]] const auto* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
