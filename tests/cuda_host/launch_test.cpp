// Shared memory of a launch: the driver's limits, static bytes included.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops.h>
#include <sherd/nn/ops.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace sherd {
namespace {

__global__ void count_threads(int* threads) { ++*threads; }
const void* const kCountThreads = reinterpret_cast<const void*>(&count_threads);

/// Allows this much dynamic shared memory, by cudaFuncSetAttribute.
cudaError_t allow(int bytes) {
  return cudaFuncSetAttribute(kCountThreads, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

TEST(SharedMemoryOfALaunch, IsRefusedByTheDriverWhereStaticBytesLeaveLess) {
  constexpr int kDevice = 7;  // no other test allows kernels anything there
  ASSERT_EQ(cudaSetDevice(kDevice), cudaSuccess);
  int chip = 0;
  cudaFuncAttributes attributes{};
  ASSERT_EQ(cudaDeviceGetAttribute(&chip, cudaDevAttrMaxSharedMemoryPerBlockOptin, kDevice), cudaSuccess);
  ASSERT_EQ(cudaFuncGetAttributes(&attributes, kCountThreads), cudaSuccess);
  const int fixed = static_cast<int>(attributes.sharedSizeBytes), most = chip - fixed;
  ASSERT_GT(fixed, 0);
  const auto start = [](int bytes) {
    int threads = 0;
    return cuda_host::launch(nullptr, "count", kCountThreads, dim3(1), dim3(1), static_cast<size_t>(bytes),
                             [&] { count_threads(&threads); });
  };
  EXPECT_EQ(start(48 * 1024 - fixed), cudaSuccess);
  EXPECT_EQ(start(48 * 1024 - fixed + 1), cudaErrorInvalidValue);
  EXPECT_EQ(allow(most + 1), cudaErrorInvalidValue);
  EXPECT_EQ(allow(most), cudaSuccess);
  EXPECT_EQ(start(most), cudaSuccess);
  EXPECT_EQ(start(most + 1), cudaErrorInvalidValue);
  cudaGetLastError();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(SharedMemoryOfALaunch, ReachesTheLimitOfItsKernelAndNamesItBeyond) {
  const auto device = make_cuda_device();
  int threads = 0;
  std::string refused;
  device->compute().submit("test", [&](ExecutionContext& context) {
    const auto most = static_cast<size_t>(cuda::dynamic_shared_limit(context, "count", kCountThreads));
    const cuda::Grid full{dim3(2), dim3(32), most}, beyond{dim3(2), dim3(32), most + 1};
    cuda::launch(context, "count", count_threads, full, &threads);
    try {
      cuda::launch(context, "count", count_threads, beyond, &threads);
    } catch (const CudaError& e) {
      refused = e.what();
    }
  });
  device->compute().synchronize();
  EXPECT_EQ(threads, 64);
  EXPECT_EQ(refused,
            "count: a block asks for 230401 bytes of dynamic shared memory; this kernel can have 230400");
}

/// Loss and gradient of two rows on a chip of the capability.
std::vector<float> cross_entropy_on(const char* capability, int64_t vocab) {
  setenv("SHERD_HOST_CUDA_CAPABILITY", capability, 1);
  const auto device = make_cuda_device();
  unsetenv("SHERD_HOST_CUDA_CAPABILITY");
  Stream& s = device->compute();
  const Tensor logits = Tensor::empty(*device, {2, vocab}, DType::f32, "test"),
               targets = Tensor::empty(*device, {2}, DType::i32, "test"),
               losses = Tensor::empty(*device, {2}, DType::f32, "test");
  ops::random_normal(s, logits, 0, 1, "logits", 0, 4);
  ops::fill(s, targets, 5);
  ops::cross_entropy_forward_backward(s, losses, logits, logits, targets, 1);
  std::vector<float> all = ops::to_floats(s, losses);
  const std::vector<float> gradient = ops::to_floats(s, logits);
  all.insert(all.end(), gradient.begin(), gradient.end());
  return all;
}

// 12.0 has 99 KiB for a block, 9.0 has 227. The rest of a row is read again from global memory.
TEST(SharedMemoryOfALaunch, OfAChipWithLessGivesTheSameBits) {
  for (const int64_t vocab : {30'000, 60'000})
    EXPECT_EQ(cross_entropy_on("120", vocab), cross_entropy_on("90", vocab)) << vocab;
}

}  // namespace
}  // namespace sherd
