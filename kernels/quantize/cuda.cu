#include <sherd/kernels/quantize/quantize.h>

#include <cfloat>

#include <sherd/kernels/device/cuda/segments.h>
#include <sherd/kernels/rest/cuda_forms.h>

// The same fp32 operations as the reference, each rounded by itself. A warp has a block of 64, 128 or 256 elements: 2, 4 or 8 in
// a lane, which are one draw of noise at most.

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256, kBatch = 32;  // segments of a launch
constexpr unsigned kAllLanes = 0xffffffffu;

struct Blocks {
  int count = 0;
  BlockSegment segments[kBatch];
  int64_t before[kBatch + 1] = {};  // blocks of the segments before
};

__device__ uint32_t float8_code(float y, uint32_t noise) {
  const uint32_t u = __float_as_uint(y) & 0x7fffffffu;
  const float small = y < 0x1p-6f ? y : 0.0f;
  const float sum = __fadd_rn(__fmul_rn(small, 512.0f), __fmul_rn(static_cast<float>(noise), 0x1p-16f));
  const uint32_t code =
      u < 0x3c800000u ? static_cast<uint32_t>(static_cast<int32_t>(sum)) : ((u + (noise << 4)) >> 20) - 960;
  return y <= 447.9f ? code : 126;
}

/// Same as quantized() and dequantized() of quantize.h.
template <StateCode kCode>
__device__ uint8_t code_of(float v, float inverse, uint32_t noise) {
  if constexpr (kCode == StateCode::linear) {
    const float y = __fmul_rn(fabsf(v), inverse);
    const float t = __fadd_rn(y, __fmul_rn(static_cast<float>(noise), 0x1p-16f));
    const auto c = static_cast<int32_t>(y <= 126.99f ? t : 127.0f);
    return static_cast<uint8_t>(v < 0 ? -c : c);
  } else if constexpr (kCode == StateCode::floating) {
    return static_cast<uint8_t>(float8_code(__fmul_rn(fabsf(v), inverse), noise) |
                                (v == v ? __float_as_uint(v) >> 24 & 0x80u : 0));
  } else {
    const uint32_t c = float8_code(__fmul_rn(__fsqrt_rn(v), inverse), noise);
    return static_cast<uint8_t>(c == 0 && v > 0 ? 1 : c);
  }
}
template <StateCode kCode>
__device__ float value_of(uint8_t code, float scale) {
  if constexpr (kCode == StateCode::linear)
    return __fmul_rn(static_cast<float>(static_cast<int8_t>(code)), scale);
  const uint32_t c = code & 0x7fu;
  const float unit = c < 8 ? __fmul_rn(static_cast<float>(c), 0x1p-9f) : __uint_as_float((c + 960) << 20);
  const float r = __fmul_rn(unit, scale);
  if constexpr (kCode == StateCode::square_root) return __fmul_rn(r, r);
  return __uint_as_float(__float_as_uint(r) | static_cast<uint32_t>(code & 0x80u) << 24);
}

template <StateCode kCode, int N>
__device__ void quantize_block(const BlockSegment& s, int64_t block, int lane) {
  const int64_t first = block * s.block + lane * N;
  const Vec<float, N> v = load<N>(s.values, first);
  uint32_t largest = 0;  // magnitudes are ordered as their bits, NaN above all
#pragma unroll
  for (int k = 0; k < N; ++k) largest = max(largest, __float_as_uint(v[k]) & 0x7fffffffu);
  largest = __reduce_max_sync(kAllLanes, largest);
  float top = __uint_as_float(largest), scale = 0, inverse = 0;
  if constexpr (kCode == StateCode::square_root) top = __fsqrt_rn(top);
  if (!(top <= FLT_MAX)) {
    scale = __uint_as_float(kQuietNan);
  } else if (top >= 0x1p-100f) {
    constexpr float kTop = kCode == StateCode::linear ? 127.0f : 448.0f;
    scale = __fdiv_rn(top, kTop);
    inverse = __fdiv_rn(kTop, top);
  }
  if (lane == 0) s.scales[block] = scale;
  constexpr NoiseUse kUse = kCode == StateCode::square_root ? NoiseUse::second_state : NoiseUse::first_state;
  Vec<uint8_t, N> codes;
  const auto put = [&](auto noise) {
#pragma unroll
    for (int k = 0; k < N; ++k) codes[k] = code_of<kCode>(v[k], inverse, noise(k));
  };
  if (s.noise.count == nullptr) {
    put([](int) -> uint32_t { return kToNearest; });
  } else {
    const Draw<N> drawn(s.noise, first);
    put([&](int k) { return drawn.at(kUse, k); });
  }
  store(s.codes, first, codes);
}

template <StateCode kCode, int N>
__device__ void dequantize_block(const BlockSegment& s, int64_t block, int lane) {
  const int64_t first = block * s.block + lane * N;
  const Vec<uint8_t, N> codes = load<N>(s.codes, first);
  const float scale = s.scales[block];
  Vec<float, N> v;
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = value_of<kCode>(codes[k], scale);
  store(s.values, first, v);
}

/// Calls f(std::integral_constant<int, elements of a lane>).
template <class F>
__device__ void with_lane(int64_t block, F f) {
  if (block == 256) {
    f(std::integral_constant<int, 8>{});
  } else if (block == 128) {
    f(std::integral_constant<int, 4>{});
  } else {
    f(std::integral_constant<int, 2>{});
  }
}

template <bool kQuantizes>
__global__ void __launch_bounds__(kThreads)
    over_blocks(const __grid_constant__ Blocks batch, const int64_t* skip) {
  if (skip != nullptr && *skip != 0) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  int at = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; i < batch.before[batch.count];
       i += int64_t{gridDim.x} * kThreads / 32) {
    while (batch.before[at + 1] <= i) ++at;
    const BlockSegment& s = batch.segments[at];
    const auto run = [&]<StateCode kCode>(std::integral_constant<StateCode, kCode>) {
      with_lane(s.block, [&]<int N>(std::integral_constant<int, N>) {
        if constexpr (kQuantizes) {
          quantize_block<kCode, N>(s, i - batch.before[at], lane);
        } else {
          dequantize_block<kCode, N>(s, i - batch.before[at], lane);
        }
      });
    };
    if (s.code == StateCode::linear) {
      run(std::integral_constant<StateCode, StateCode::linear>{});
    } else if (s.code == StateCode::floating) {
      run(std::integral_constant<StateCode, StateCode::floating>{});
    } else {
      run(std::integral_constant<StateCode, StateCode::square_root>{});
    }
  }
}

template <bool kQuantizes>
void run(ExecutionContext& context, const BlockArgs& a) {
  Blocks batch;
  const auto flush = [&] {
    const int64_t blocks = batch.before[batch.count];
    if (blocks > 0)
      launch(context, kQuantizes ? "quantize" : "dequantize", over_blocks<kQuantizes>,
             Grid{dim3(blocks_of(blocks, kThreads / 32, 132 * 16)), dim3(kThreads)}, batch, a.skip);
    batch.count = 0;
  };
  for (const BlockSegment& s : a.segments) {
    if (s.count <= 0) continue;
    const int i = batch.count++;
    batch.segments[i] = s;
    batch.before[i + 1] = batch.before[i] + s.count / s.block;
    if (batch.count == kBatch) flush();
  }
  flush();
}

void quantize(ExecutionContext& context, const BlockArgs& a) { run<true>(context, a); }
void dequantize(ExecutionContext& context, const BlockArgs& a) { run<false>(context, a); }

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const QuantizeKernels* QuantizeKernels::cuda() {
  static constexpr QuantizeKernels table{.quantize = cuda::quantize, .dequantize = cuda::dequantize};
  return &table;
}

}  // namespace sherd
