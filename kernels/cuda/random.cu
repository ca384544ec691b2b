#include "cuda.h"
#include "philox.h"
#include "vector.h"

// Philox4x32-10 and Box-Muller as in kernels/reference/random.cpp, in double: the integers are the same, and
// the normal numbers differ from the host's where the last bit of a double's log, sine or cosine changes how
// the result rounds to fp32, in about one of 10^8 elements and by one unit in the last place.

namespace sherd::cuda {
namespace {

constexpr double kTwoPi = 6.28318530717958647692;

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
      const double radius = sqrt(-2 * log((bits.v[k] + 0.5) * 0x1p-32));  // + 0.5: never log(0)
      double sine, cosine;
      sincos(kTwoPi * (bits.v[k + 1] * 0x1p-32), &sine, &cosine);
      z[k] = static_cast<float>(mean + stddev * (radius * cosine));
      z[k + 1] = static_cast<float>(mean + stddev * (radius * sine));
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

}  // namespace

void random_normal(ExecutionContext& context, float* dst, int64_t begin, int64_t count, uint64_t key,
                   float mean, float stddev) {
  if (count <= 0) return;
  const int64_t first = begin / 4, blocks = (begin + count - 1) / 4 - first + 1;
  const bool aligned = on_boundary<float, 4>(dst, 4 * first - begin);
  launch(context, "random_normal", normals, grid_for(blocks), dst, begin, count, first, blocks, key,
         double{mean}, double{stddev}, aligned);
}

}  // namespace sherd::cuda
