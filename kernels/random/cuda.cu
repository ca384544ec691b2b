#include <sherd/kernels/random/random.h>

#include <sherd/kernels/device/cuda/vector.h>

#include "cuda_philox.h"

// Philox4x32-10 and Box-Muller as in kernels/random/reference.cpp, in double: the integers are the same, and
// the normal numbers differ from the host's where the last bit of a double's log, sine or cosine changes how
// the result rounds to fp32, in about one of 10^8 elements and by one unit in the last place.

namespace sherd::cuda {
namespace {

constexpr double kTwoPi = 6.28318530717958647692;

/// Two standard normal values.
__device__ void box_muller(uint32_t first, uint32_t second, double* z) {
  const double radius = sqrt(-2 * log((first + 0.5) * 0x1p-32));  // + 0.5: never log(0)
  double sine, cosine;
  sincos(kTwoPi * (second * 0x1p-32), &sine, &cosine);
  z[0] = radius * cosine;
  z[1] = radius * sine;
}

/// Blocks [first, first + blocks) of four elements; those in [begin, begin + count) are stored.
__global__ void __launch_bounds__(256)
    normals(float* dst, int64_t begin, int64_t count, int64_t first, int64_t blocks, uint64_t key,
            double mean, double stddev, bool aligned) {
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < blocks;
       b += int64_t{gridDim.x} * blockDim.x) {
    const Words bits = philox(static_cast<uint64_t>(first + b), key);
    Vec<float, 4> z;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      double pair[2];
      box_muller(bits.v[k], bits.v[k + 1], pair);
      z[k] = static_cast<float>(mean + stddev * pair[0]);
      z[k + 1] = static_cast<float>(mean + stddev * pair[1]);
    }
    const int64_t at = 4 * (first + b) - begin;
    if (aligned && at >= 0 && at + 4 <= count) {
      store(dst, at, z);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (at + k >= 0 && at + k < count) dst[at + k] = z[k];
  }
}

__global__ void __launch_bounds__(256)
    uniforms(float* dst, int64_t begin, int64_t count, uint64_t key, double low, double width) {
  const int64_t first = begin / 4, blocks = (begin + count - 1) / 4 - first + 1;
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < blocks;
       b += int64_t{gridDim.x} * blockDim.x) {
    const Words bits = philox(static_cast<uint64_t>(first + b), key);
    const int64_t at = 4 * (first + b) - begin;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (at + k >= 0 && at + k < count)
        dst[at + k] = static_cast<float>(fma(width, (bits.v[k] + 0.5) * 0x1p-32, low));
  }
}

/// Same as kernels/random/reference.cpp: the first candidate within the bounds.
__global__ void __launch_bounds__(256)
    truncated_normals(float* dst, int64_t begin, int64_t count, uint64_t key, double mean, double stddev,
                      float low, float high) {
  constexpr uint32_t kAttempts = 2048;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    float found = fminf(fmaxf(static_cast<float>(mean), low), high);
    bool done = false;
    for (uint32_t attempt = 0; attempt < kAttempts && !done; ++attempt) {
      const Words bits = philox(static_cast<uint64_t>(begin + i), key, attempt, 1);
      double z[4];
      box_muller(bits.v[0], bits.v[1], z);
      box_muller(bits.v[2], bits.v[3], z + 2);
      for (int k = 0; k < 4 && !done; ++k) {
        const float v = static_cast<float>(mean + stddev * z[k]);
        if (low <= v && v <= high) found = v, done = true;
      }
    }
    dst[i] = found;
  }
}

void random_uniform(ExecutionContext& context, const RandomBoundedArgs& a) {
  if (a.count <= 0) return;
  const int64_t blocks = (a.begin + a.count - 1) / 4 - a.begin / 4 + 1;
  launch(context, "random_uniform", uniforms, grid_for(blocks), a.dst, a.begin, a.count, a.key, double{a.low},
         double{a.high} - a.low);
}

void random_truncated_normal(ExecutionContext& context, const RandomBoundedArgs& a) {
  if (a.count <= 0) return;
  launch(context, "random_truncated_normal", truncated_normals, grid_for(a.count), a.dst, a.begin, a.count,
         a.key, double{a.mean}, double{a.stddev}, a.low, a.high);
}

void random_normal(ExecutionContext& context, float* dst, int64_t begin, int64_t count, uint64_t key,
                   float mean, float stddev) {
  if (count <= 0) return;
  const int64_t first = begin / 4, blocks = (begin + count - 1) / 4 - first + 1;
  const bool aligned = on_boundary<float, 4>(dst, 4 * first - begin);
  launch(context, "random_normal", normals, grid_for(blocks), dst, begin, count, first, blocks, key,
         double{mean}, double{stddev}, aligned);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const RandomKernels* RandomKernels::cuda() {
  static constexpr RandomKernels table{
      .random_uniform = cuda::random_uniform,
      .random_truncated_normal = cuda::random_truncated_normal,
      .random_normal = cuda::random_normal,
  };
  return &table;
}

}  // namespace sherd
