// Skips every test of a program on machines without a GPU.
#include <gtest/gtest.h>
#include <sherd/kernels/device.h>

namespace {

struct NeedsGpu : testing::Environment {
  void SetUp() override {
    if (sherd::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

[[maybe_unused]] const auto* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
