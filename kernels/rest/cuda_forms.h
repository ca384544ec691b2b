// Elements in their rest form on the device, and their noise. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/device/cuda/vector.h>
#include <sherd/kernels/random/cuda_philox.h>
#include <sherd/kernels/rest/detail/with_forms.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd::cuda {

/// Same as rounded(), split() and joined() of rest.h, as bits.
__device__ inline uint16_t rounded_bits(float v, uint32_t noise) {
  return static_cast<uint16_t>((v == v ? __float_as_uint(v) + noise : kQuietNan) >> 16);
}
__device__ inline void split_bits(float v, uint16_t& high, uint16_t& low) {
  const uint32_t u = v == v ? __float_as_uint(v) : kQuietNan;
  high = static_cast<uint16_t>((u + 0x8000u) >> 16);
  low = static_cast<uint16_t>(u);
}
__device__ inline float joined_bits(uint16_t high, uint16_t low) {
  const uint32_t u = (static_cast<uint32_t>(high) << 16) + low;
  return __uint_as_float(low < 0x8000u ? u : u - 0x10000u);
}

/// Same as Noise::index().
__device__ inline uint64_t index_of(const Noise& n, int64_t i) {
  const int64_t at = n.first + i;
  return static_cast<uint64_t>(n.width == 0 ? at : at / n.width * n.pitch + n.offset + at % n.width);
}

/// Noise of N consecutive elements.
template <int N>
struct Draw {
  uint32_t bits[N];

  __device__ Draw(const Noise& noise, int64_t i) {
    const auto count = static_cast<uint32_t>(*noise.count);
    Words block{};
    uint64_t drawn = ~uint64_t{0};
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint64_t index = index_of(noise, i + k);
      // The element before may be of the same block.
      if (index / 8 != drawn) block = philox<7>(drawn = index / 8, noise.key, count, 2);
      const bool later = index % 4 >= 2;
      const uint32_t word =
          index % 8 < 4 ? (later ? block.v[1] : block.v[0]) : (later ? block.v[3] : block.v[2]);
      bits[k] = index % 2 == 0 ? word & 0xffffu : word >> 16;
    }
  }
  /// Same as noise_for().
  __device__ uint32_t at(NoiseUse use, int k) const {
    const uint32_t factor = use == NoiseUse::weight        ? 1
                            : use == NoiseUse::first_state ? kFirstStateFactor
                                                           : kSecondStateFactor;
    return bits[k] * factor & 0xffffu;
  }
};
/// Nothing, where no form draws.
struct NoDraw {
  __device__ uint32_t at(NoiseUse, int) const { return 0; }
};

// Each loads N elements as f32 and stores them. cover() aligns bound() and low_bound().

struct InF32 {
  static constexpr bool kDraws = false;
  float* at;
  template <int N>
  __device__ Vec<float, N> get(int64_t i) const {
    return load<N>(at, i);
  }
  template <int N, class D>
  __device__ void put(int64_t i, const Vec<float, N>& v, const D&, NoiseUse) const {
    store(at, i, v);
  }
  const float* bound() const { return at; }
  const uint16_t* low_bound() const { return nullptr; }
};

struct InBf16 {
  static constexpr bool kDraws = true;
  uint16_t* at;
  template <int N>
  __device__ Vec<float, N> get(int64_t i) const {
    const Vec<uint16_t, N> in = load<N>(at, i);
    Vec<float, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = __uint_as_float(static_cast<uint32_t>(in[k]) << 16);
    return v;
  }
  template <int N, class D>
  __device__ void put(int64_t i, const Vec<float, N>& v, const D& noise, NoiseUse use) const {
    Vec<uint16_t, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = rounded_bits(v[k], noise.at(use, k));
    store(at, i, out);
  }
  const uint16_t* bound() const { return at; }
  const uint16_t* low_bound() const { return nullptr; }
};

struct InHalves {
  static constexpr bool kDraws = false;
  uint16_t *high, *low;
  template <int N>
  __device__ Vec<float, N> get(int64_t i) const {
    const Vec<uint16_t, N> h = load<N>(high, i), l = load<N>(low, i);
    Vec<float, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = joined_bits(h[k], l[k]);
    return v;
  }
  template <int N, class D>
  __device__ void put(int64_t i, const Vec<float, N>& v, const D&, NoiseUse) const {
    Vec<uint16_t, N> h, l;
#pragma unroll
    for (int k = 0; k < N; ++k) split_bits(v[k], h[k], l[k]);
    store(high, i, h);
    store(low, i, l);
  }
  const uint16_t* bound() const { return high; }
  const uint16_t* low_bound() const { return low; }
};

/// Weights of any form, for reading alone: few passes do, so the form is a value.
struct ReadWeights {
  Master form = Master::f32;
  void* high = nullptr;
  uint16_t* low = nullptr;
  template <int N>
  __device__ Vec<float, N> get(int64_t i) const {
    if (form == Master::f32) return InF32{static_cast<float*>(high)}.template get<N>(i);
    if (form == Master::bf16) return InBf16{static_cast<uint16_t*>(high)}.template get<N>(i);
    return InHalves{static_cast<uint16_t*>(high), low}.template get<N>(i);
  }
  const float* whole_bound() const { return form == Master::f32 ? static_cast<const float*>(high) : nullptr; }
  const uint16_t* bound() const { return form == Master::f32 ? nullptr : static_cast<const uint16_t*>(high); }
};

/// Gradients of a pass.
inline ReadWeights read_gradients(const RestForms& forms, const void* at) {
  return {forms.gradient == DType::f32 ? Master::f32 : Master::bf16, const_cast<void*>(at)};
}

/// What an operation keeps of its segment's noise: nothing where no form of it draws.
template <bool kDraws>
struct KeptNoise {
  Noise noise;
  template <int N>
  __device__ Draw<N> draw(int64_t i) const {
    return Draw<N>(noise, i);
  }
};
template <>
struct KeptNoise<false> {
  KeptNoise() = default;
  explicit KeptNoise(const Noise&) {}
  template <int N>
  __device__ NoDraw draw(int64_t) const {
    return {};
  }
};

template <class F>
void with_weights(Master form, F&& f) {
  rest::with_weights<InF32, InBf16, InHalves>(form, f);
}
template <class F>
void with_state(DType dtype, F&& f) {
  rest::with_state<InF32, InBf16>(dtype, f);
}

}  // namespace sherd::cuda
