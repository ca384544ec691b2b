// Elementwise CUDA kernels, given by a function of one element. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/device/ref.h>

#include "vector.h"

namespace sherd::cuda {

/// out[i] = f(in[0][i], ...), computed in fp32 and rounded to T. `out` may be one of `in`.
template <class T, class F, int kInputs>
struct Map {
  static constexpr int kVec = 16 / sizeof(T);
  T* out;
  const T* in[kInputs];
  F f;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<T, N> v[kInputs];
#pragma unroll
    for (int n = 0; n < kInputs; ++n) v[n] = load<N>(in[n], i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (kInputs == 1)
        put(v[0][k], f(to_float(v[0][k])));
      else
        put(v[0][k], f(to_float(v[0][k]), to_float(v[1][k])));
    }
    store(out, i, v[0]);
  }
};

/// Queues it for f32 or bf16.
template <class F, class... In>
void map_elements(ExecutionContext& context, const char* what, int64_t count, F f, Ref out, In... in) {
  with_f32_bf16(out.dtype, [&]<class T>(T) {
    T* to = out.as<T>();
    for_elements(context, what, Map<T, F, sizeof...(in)>{to, {in.template as<T>()...}, f}, count, to,
                 static_cast<const T*>(in.template as<T>())...);
  });
}

}  // namespace sherd::cuda
