#include <sherd/kernels/epilogue/epilogue.h>

#include <sherd/kernels/device/cuda/map.h>

// 0.5 (1 + tanh(u)) is sigmoid(2u), which needs one exponential and loses no digits where tanh is near -1.

namespace sherd::cuda {
namespace {

constexpr float kTwoRoot = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

/// Beyond 12 the sigmoid is 0 or 1 to fp32; the bound keeps powers of x finite. NaN stays.
__device__ float clamped(float x) {
  const float c = x < -12.0f ? -12.0f : x;
  return c > 12.0f ? 12.0f : c;
}

__device__ float gelu(float x) {
  const float c = clamped(x);
  return __fdividef(x, 1.0f + expf(-kTwoRoot * c * fmaf(kCubic * c, c, 1.0f)));
}

__device__ float gelu_slope(float x) {
  const float c = clamped(x);
  const float s = __fdividef(1.0f, 1.0f + expf(-kTwoRoot * c * fmaf(kCubic * c, c, 1.0f)));
  const float du = kTwoRoot * fmaf(3 * kCubic * c, c, 1.0f);
  return fmaf(c * s * (1.0f - s), du, s);
}

struct Gelu {
  __device__ float operator()(float x) const { return gelu(x); }
};

struct GeluBackward {
  __device__ float operator()(float dy, float x) const { return dy * gelu_slope(x); }
};

/// y[r][c] += bias[c] for groups of N columns; block.y rows at once.
template <class T, int N>
__global__ void __launch_bounds__(256) add_to_rows(T* y, const T* bias, int64_t rows, int64_t cols) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (c >= cols) return;
  const Vec<T, N> b = load<N>(bias, c);
  for (int64_t r = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; r < rows;
       r += int64_t{gridDim.y} * blockDim.y) {
    Vec<T, N> v = load<N>(y, r * cols + c);
#pragma unroll
    for (int k = 0; k < N; ++k) put(v[k], __fadd_rn(to_float(v[k]), to_float(b[k])));
    store(y, r * cols + c, v);
  }
}

// Column sums: a block of 32 x 8 threads sums kStrip columns of `chunk` rows, its y-th threads every eighth
// row; sums of chunks are added up in their order. All of it depends on rows and cols alone.
constexpr int kStrip = 32, kLanes = 8;
constexpr int64_t kLeastChunk = 64, kMostChunks = 512, kBlocks = 1024;

int64_t rows_of_chunk(int64_t rows, int64_t cols) {
  const int64_t strips = (cols + kStrip - 1) / kStrip;
  const int64_t chunks = std::clamp<int64_t>(kBlocks / strips, 1, kMostChunks);
  return std::max(kLeastChunk, (rows + chunks - 1) / chunks);
}

/// sums[chunk][c] = the sum of the chunk, or added to it with `add`.
template <class T>
__global__ void __launch_bounds__(kStrip* kLanes)
    sum_columns(float* sums, const T* x, int64_t rows, int64_t cols, int64_t chunk, bool add) {
  const int64_t c = int64_t{blockIdx.x} * kStrip + threadIdx.x, first = int64_t{blockIdx.y} * chunk;
  const int64_t end = first + chunk < rows ? first + chunk : rows;
  float sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (int64_t r = first + threadIdx.y; r < end; r += kLanes) sum += to_float(x[r * cols + c]);
  }
  __shared__ float part[kLanes][kStrip];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  float total = part[0][threadIdx.x];
#pragma unroll
  for (int y = 1; y < kLanes; ++y) total += part[y][threadIdx.x];
  float* to = sums + blockIdx.y * cols + c;
  *to = add ? *to + total : total;
}

void gelu_forward(ExecutionContext& context, Ref y, Ref x, int64_t count) {
  map_elements(context, "gelu_forward", count, Gelu{}, y, x);
}

void gelu_backward(ExecutionContext& context, Ref dx, Ref dy, Ref x, int64_t count) {
  map_elements(context, "gelu_backward", count, GeluBackward{}, dx, dy, x);
}

void add_bias(ExecutionContext& context, Ref y, Ref bias, int64_t rows, int64_t cols) {
  if (rows <= 0 || cols <= 0) return;
  with_f32_bf16(y.dtype, [&]<class T>(T) {
    T* out = y.as<T>();
    const T* b = bias.as<T>();
    constexpr int kVec = 16 / sizeof(T);
    const bool fast = rows_on_boundaries<kVec>(cols, out, b);
    const int64_t groups = fast ? cols / kVec : cols;
    const dim3 block = row_block(groups);
    const dim3 blocks(blocks_of(groups, block.x, INT32_MAX), blocks_of(rows, 4 * int64_t{block.y}, 65535));
    launch(context, "add_bias", fast ? add_to_rows<T, kVec> : add_to_rows<T, 1>, Grid{blocks, block}, out, b,
           rows, cols);
  });
}

void bias_backward(ExecutionContext& context, Ref to, Ref dy, int64_t rows, int64_t cols) {
  float* dbias = to.as<float>();
  if (rows <= 0 || cols <= 0) return;
  with_f32_bf16(dy.dtype, [&]<class T>(T) {
    const int64_t chunk = rows_of_chunk(rows, cols), chunks = (rows + chunk - 1) / chunk;
    const dim3 block(kStrip, kLanes);
    const unsigned strips = blocks_of(cols, kStrip, INT32_MAX);
    const T* x = dy.as<T>();
    if (chunks == 1) {
      launch(context, "bias_backward", sum_columns<T>, Grid{dim3(strips), block}, dbias, x, rows, cols, chunk,
             true);
      return;
    }
    auto* sums = static_cast<float*>(context.scratch(chunks * cols * static_cast<int64_t>(sizeof(float))));
    const dim3 blocks(strips, static_cast<unsigned>(chunks));
    launch(context, "bias_backward", sum_columns<T>, Grid{blocks, block}, sums, x, rows, cols, chunk, false);
    launch(context, "bias_backward", sum_columns<float>, Grid{dim3(strips), block}, dbias,
           static_cast<const float*>(sums), chunks, cols, chunks, true);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const EpilogueKernels* EpilogueKernels::cuda() {
  static constexpr EpilogueKernels table{
      .gelu_forward = cuda::gelu_forward,
      .gelu_backward = cuda::gelu_backward,
      .add_bias = cuda::add_bias,
      .bias_backward = cuda::bias_backward,
  };
  return &table;
}

}  // namespace sherd
