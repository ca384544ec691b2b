#include <cuda_host/emulation.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr unsigned kFull = ~0u;

__device__ __forceinline__ float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kFull, x, i);
  return x;
}

template <class T>
__global__ void __launch_bounds__(256) sum_rows(T* out, const T* __restrict__ x, int cols) {
  __shared__ T partial[8];
  T sum = 0;
#pragma unroll 4
  for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[blockIdx.x * cols + c];
  sum = warp_sum(sum);
  if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < 8 ? partial[threadIdx.x] : 0;
  sum = warp_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST(Emulation, SumsByShufflesAndSharedMemory) {
  const int rows = 37, cols = 1000;
  std::vector<float> x(rows * cols), out(rows);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
  cuda_host::run("sum_rows", dim3(rows), dim3(256), 0, [&] { sum_rows(out.data(), x.data(), cols); });
  for (int r = 0; r < rows; ++r)
    EXPECT_EQ(out[r], std::accumulate(x.begin() + r * cols, x.begin() + (r + 1) * cols, 0.0f)) << r;
}

__global__ void tree_sum(double* out, const double* x) {
  SHERD_DYNAMIC_SHARED(double, s);
  const unsigned t = threadIdx.y * blockDim.x + threadIdx.x, n = blockDim.x * blockDim.y;
  s[t] = x[blockIdx.x * n + t];
  __syncthreads();
  for (unsigned half = n / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}

TEST(Emulation, SumsInATreeOfBarriers) {
  for (unsigned n : {1u, 2u, 64u, 1024u}) {
    std::vector<double> x(5 * n), out(5);
    std::iota(x.begin(), x.end(), 1.0);
    const dim3 threads(n >= 32 ? 32 : n, n >= 32 ? n / 32 : 1);
    cuda_host::run("tree_sum", dim3(5), threads, n * sizeof(double), [&] { tree_sum(out.data(), x.data()); });
    for (unsigned b = 0; b < 5; ++b)
      EXPECT_EQ(out[b], std::accumulate(x.begin() + b * n, x.begin() + (b + 1) * n, 0.0)) << n;
  }
}

TEST(Emulation, ThreadsKnowWhereTheyAre) {
  std::vector<int> seen(2 * 3 * 4 * 5 * 6 * 2);
  cuda_host::run("where", dim3(2, 3, 4), dim3(5, 6, 2), 0, [&] {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    if (thread % 3 == 0) __syncthreads();
    ++seen[block * 60 + thread];
  });
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(Emulation, Shuffles) {
  std::vector<int> up(32), down(32), exchanged(32), segment(32), half(32);
  std::vector<double> wide(32);
  cuda_host::run("shuffles", dim3(1), dim3(32), 0, [&] {
    const int t = static_cast<int>(threadIdx.x);
    up[t] = __shfl_up_sync(kFull, t, 3);
    down[t] = __shfl_down_sync(kFull, t, 5, 8);
    exchanged[t] = __shfl_xor_sync(kFull, t, 20);
    segment[t] = __shfl_sync(kFull, t, 9, 8);
    wide[t] = __shfl_sync(kFull, t + 0.5, 31 - t);
    half[t] = t < 16 ? __shfl_xor_sync(0xffffu, t, 1) : __shfl_xor_sync(0xffff0000u, 100 + t, 1);
  });
  for (int t = 0; t < 32; ++t) {
    EXPECT_EQ(up[t], t < 3 ? t : t - 3);
    EXPECT_EQ(down[t], t % 8 + 5 < 8 ? t + 5 : t);
    EXPECT_EQ(exchanged[t], t ^ 20);
    EXPECT_EQ(segment[t], t / 8 * 8 + 1);
    EXPECT_EQ(wide[t], 31 - t + 0.5);
    EXPECT_EQ(half[t], t < 16 ? t ^ 1 : 100 + (t ^ 1));
  }
}

TEST(Emulation, Votes) {
  cuda_host::run("votes", dim3(3), dim3(96), 0, [&] {
    const int t = static_cast<int>(threadIdx.x);
    EXPECT_EQ(__ballot_sync(kFull, t % 32 == 3 || t % 32 == 31), 0x80000008u);
    EXPECT_EQ(__any_sync(kFull, t == 40), t / 32 == 1);
    EXPECT_EQ(__all_sync(kFull, t < 40), t / 32 == 0);
    EXPECT_EQ(__match_any_sync(kFull, t % 2), t % 2 ? 0xaaaaaaaau : 0x55555555u);
    EXPECT_EQ(__reduce_add_sync(kFull, -1), -32);
    EXPECT_EQ(__reduce_max_sync(kFull, t % 32 - 40), -9);
    EXPECT_EQ(__reduce_min_sync(kFull, t % 32 - 20), -20);
    EXPECT_EQ(__reduce_max_sync(kFull, static_cast<unsigned>(t % 32)), 31u);
    EXPECT_EQ(__syncthreads_count(t % 3 == 0), 32);
    EXPECT_TRUE(__syncthreads_or(t == 95));
    EXPECT_FALSE(__syncthreads_or(0));
    EXPECT_TRUE(__syncthreads_and(t >= 0));
    EXPECT_FALSE(__syncthreads_and(t != 7));
  });
}

TEST(Emulation, ThreadsThatReturnedAreNotWaitedFor) {
  int sum = 0;
  cuda_host::run("leave", dim3(1), dim3(100), 0, [&] {
    for (unsigned i = 0; i < 10; ++i) {
      if (threadIdx.x % 10 == i) return;
      __syncthreads();
      atomicAdd(&sum, 1);
    }
  });
  EXPECT_EQ(sum, 10 * (9 + 8 + 7 + 6 + 5 + 4 + 3 + 2 + 1));
}

TEST(Emulation, AMissingBarrierShowsInOneOfTwoBlocks) {
  // Each thread reads its neighbour's value: before it is written in one of the two orders.
  for (int step : {-1, 1}) {
    int wrong = 0;
    cuda_host::run("race", dim3(2), dim3(64), 64 * sizeof(int), [&] {
      SHERD_DYNAMIC_SHARED(int, s);
      const int t = static_cast<int>(threadIdx.x);
      s[t] = t;
      wrong += s[(t + step + 64) % 64] != (t + step + 64) % 64;
    });
    EXPECT_GE(wrong, 63) << step;
  }
}

TEST(Emulation, DynamicSharedMemoryStartsAsNaN) {
  int numbers = 0;
  cuda_host::run("poison", dim3(3), dim3(32), 32 * sizeof(float), [&] {
    SHERD_DYNAMIC_SHARED(float, s);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(s) % 128, 0u);
    numbers += !std::isnan(s[threadIdx.x]);
    s[threadIdx.x] = 1;
  });
  EXPECT_EQ(numbers, 0);
}

auto reports(const std::string& what) {
  return ThrowsMessage<std::logic_error>(AllOf(HasSubstr("'bad'"), HasSubstr(what)));
}
template <class F>
auto kernel(unsigned threads, F body, size_t shared_bytes = 0) {
  return [=] { cuda_host::run("bad", dim3(1), dim3(threads), shared_bytes, body); };
}

__global__ void two_barriers() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}

TEST(Emulation, ReportsMisuse) {
  EXPECT_THAT(kernel(64,
                     [] {
                       if (threadIdx.x < 32)
                         __syncthreads();
                       else
                         __shfl_sync(1u << 5 | 1, 0, 0);
                     }),
              reports("the thread itself is not named"));
  EXPECT_THAT(kernel(64, two_barriers), reports("while others are at the one in emulation_test.cpp"));
  EXPECT_THAT(kernel(32,
                     [] {
                       if (threadIdx.x < 31)
                         __shfl_sync(kFull, 1, 0);
                       else
                         __syncthreads();
                     }),
              reports("warp 0 lanes 0x7fffffff at a shuffle"));
  EXPECT_THAT(kernel(32,
                     [] {
                       if (threadIdx.x > 0) __syncwarp();
                     }),
              reports("lanes that have returned"));
  EXPECT_THAT(kernel(32,
                     [] {
                       if (threadIdx.x < 31) __syncwarp();
                     }),
              reports("lanes 0x80000000 returned"));
  EXPECT_THAT(kernel(40, [] { __syncwarp(); }), reports("beyond the end of the block"));
  EXPECT_THAT(kernel(32,
                     [] {
                       if (threadIdx.x < 16) __shfl_xor_sync(0xffffu, 1, 16);
                     }),
              reports("reads lane 16, which is not named"));
  EXPECT_THAT(kernel(32,
                     [] {
                       if (threadIdx.x < 16)
                         __ballot_sync(kFull, 1);
                       else
                         __shfl_sync(kFull, 1, 0);
                     }),
              reports("at a vote"));
  EXPECT_THAT(kernel(1025, [] {}), reports("cannot start"));
  EXPECT_THAT(kernel(
                  32, [] {}, 227 * 1024 + 1),
              reports("cannot start"));
  EXPECT_THAT([] { cuda_host::run("bad", dim3(1, 65536), dim3(1), 0, [] {}); }, reports("cannot start"));
  EXPECT_THAT(kernel(
                  32,
                  [] {
                    SHERD_DYNAMIC_SHARED(char, s);
                    s[64] = 0;
                  },
                  64),
              reports("byte 64"));
  EXPECT_THAT(kernel(32,
                     [] {
                       SHERD_DYNAMIC_SHARED(char, s);
                       s[0] = 0;
                     }),
              reports("was started with none"));
  // And works normally afterwards.
  int ran = 0;
  cuda_host::run("good", dim3(1), dim3(64), 0, [&] { __syncthreads(), ++ran; });
  EXPECT_EQ(ran, 64);
}

TEST(Emulation, ExceptionsReachTheCaller) {
  struct Mine {};
  EXPECT_THROW(kernel(256,
                      [] {
                        __syncthreads();
                        if (threadIdx.x == 77) throw Mine();
                        __syncthreads();
                      })(),
               Mine);
  EXPECT_THROW(kernel(1, [] { throw Mine(); })(), Mine);
}

TEST(Emulation, SeveralOsThreadsRunKernelsAtOnce) {
  const int rows = 50, cols = 300;
  const std::vector<float> x(rows * cols, 1);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  unsigned long long total = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      std::vector<float> out(rows);
      cuda_host::run("sum_rows", dim3(rows), dim3(256), 0, [&] { sum_rows(out.data(), x.data(), cols); });
      for (float sum : out) wrong += sum != cols;
      cuda_host::run("count", dim3(10), dim3(32), 0, [&] { atomicAdd(&total, 1); });
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(total, 4u * 320);
}

TEST(Emulation, Intrinsics) {
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clzll(-1), 0);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__popc(0xf0f0u), 8);
  EXPECT_EQ(__brev(1u), 0x80000000u);
  EXPECT_EQ(__umul64hi(1ull << 63, 6), 3u);
  EXPECT_EQ(__mul64hi(-1, 1), -1);
  EXPECT_EQ(__umulhi(1u << 31, 6), 3u);
  EXPECT_EQ(__mul24(-3, 5), -15);
  EXPECT_EQ(__funnelshift_l(0x80000000u, 1, 1), 3u);
  EXPECT_EQ(__funnelshift_r(2, 1, 1), 0x80000001u);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x0527), 0x00552277u);
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rn(1e20f), std::numeric_limits<int>::max());
  EXPECT_EQ(__double2ll_rn(-3.5), -4);
  EXPECT_EQ(__float2uint_rz(-1.0f), 0u);
  EXPECT_EQ(rsqrtf(4.0f), 0.5f);
  EXPECT_EQ(min(3, 5u), 3u);
  EXPECT_EQ(max(int64_t{3}, int64_t{5}), 5);
  EXPECT_EQ(max(NAN, 1.0f), 1.0f);
  EXPECT_EQ(__saturatef(NAN), 0.0f);
  int word = 5;
  EXPECT_EQ(atomicCAS(&word, 5, 7), 5);
  EXPECT_EQ(atomicCAS(&word, 5, 8), 7);
  EXPECT_EQ(atomicMax(&word, 9), 7);
  EXPECT_EQ(atomicMin(&word, 2), 9);
  EXPECT_EQ(atomicExch(&word, -1), 2);
  EXPECT_EQ(atomicOr(&word, 1), -1);
  const float4 v = make_float4(1, 2, 3, 4);
  EXPECT_EQ(v.w, 4);
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(1.00390625f)), 1.0f);
  EXPECT_EQ(__bfloat1622float2(__floats2bfloat162_rn(1, -2)).y, -2);
}

}  // namespace
