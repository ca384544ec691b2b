// The twins of the tensor-core instructions against plain loops over whole matrices.
#include <gtest/gtest.h>
#include <sherd/kernels/device/cuda/mma.h>

#include <random>
#include <vector>

namespace sherd::cuda {
namespace {

constexpr int kDepth = 16, kRows = 16, kColumns = 16;  // C [kRows, kColumns] = A [kRows, kDepth] B

std::vector<__nv_bfloat16> numbers(int count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> small(-9, 9);  // whole numbers: sums are exact in any order
  std::vector<__nv_bfloat16> v;
  for (int i = 0; i < count; ++i) v.push_back(__float2bfloat16_rn(static_cast<float>(small(engine))));
  return v;
}

/// One warp; b is [kColumns, kDepth], or [kDepth, kColumns] when `transposed`.
__global__ void product_kernel(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, bool transposed) {
  const unsigned lane = threadIdx.x;
  uint32_t left[4], right[4];
  load_matrices(left, a + lane % 16 * kDepth + lane / 16 * 8);
  if (transposed)
    load_transposed(right, b + lane % 16 * kColumns + lane / 16 * 8);
  else
    load_matrices(right, b + (lane / 16 * 8 + lane % 8) * kDepth + lane / 8 % 2 * 8);
  for (unsigned half = 0; half < 2; ++half) {
    float sums[4] = {1, 1, 1, 1};
    mma(sums, left, right[half * 2], right[half * 2 + 1]);
    for (unsigned i = 0; i < 4; ++i)
      c[(lane / 4 + i / 2 * 8) * kColumns + half * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

TEST(Mma, MultipliesWhatLdmatrixLoads) {
  const auto a = numbers(kRows * kDepth, 1), b = numbers(kColumns * kDepth, 2);
  for (bool transposed : {false, true}) {
    std::vector<float> c(kRows * kColumns);
    cuda_host::run("product", dim3(1), dim3(32), 0,
                   [&] { product_kernel(c.data(), a.data(), b.data(), transposed); });
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) {
        float want = 1;
        for (int k = 0; k < kDepth; ++k)
          want += __bfloat162float(a[i * kDepth + k]) *
                  __bfloat162float(transposed ? b[k * kColumns + j] : b[j * kDepth + k]);
        EXPECT_EQ(c[i * kColumns + j], want) << i << ", " << j << (transposed ? " transposed" : "");
      }
  }
}

// The layout itself, word by word as the PTX manual has it, so that two errors cannot cancel.
__global__ void layout_kernel(uint32_t* words, const __nv_bfloat16* matrix, bool transposed) {
  uint32_t loaded[4];
  const __nv_bfloat16* row = matrix + threadIdx.x * 8;  // four 8 x 8 matrices, one after another
  if (transposed)
    load_transposed(loaded, row);
  else
    load_matrices(loaded, row);
  for (unsigned i = 0; i < 4; ++i) words[threadIdx.x * 4 + i] = loaded[i];
}

TEST(Mma, LdmatrixGivesEachLaneItsPair) {
  std::vector<__nv_bfloat16> matrices;
  for (int i = 0; i < 4 * 64; ++i) matrices.push_back(__float2bfloat16_rn(static_cast<float>(i)));
  auto value = [](uint32_t word, int half) {
    return std::bit_cast<float>(half ? word & 0xffff0000u : word << 16);
  };
  for (bool transposed : {false, true}) {
    std::vector<uint32_t> words(32 * 4);
    cuda_host::run("layout", dim3(1), dim3(32), 0,
                   [&] { layout_kernel(words.data(), matrices.data(), transposed); });
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const int across = lane / 4, along = lane % 4 * 2 + half;
          const int want = 64 * i + (transposed ? along * 8 + across : across * 8 + along);
          EXPECT_EQ(value(words[lane * 4 + i], half), static_cast<float>(want)) << lane << " " << i;
        }
  }
}

TEST(Mma, CopiesOrClearsSixteenBytesAndPacksLowFirst) {
  alignas(16) uint32_t from[4] = {1, 2, 3, 4}, to[4] = {9, 9, 9, 9};
  copy_async(to, from, true);
  copies_done();
  EXPECT_EQ(to[3], 4u);
  copy_async(to, from, false);
  copies_done();
  EXPECT_EQ(to[0] | to[1] | to[2] | to[3], 0u);
  EXPECT_EQ(pack_bf16(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(pack_bf16(1.00390625f, 1.01171875f), 0x3f823f80u);  // ties go to even
}

}  // namespace
}  // namespace sherd::cuda
