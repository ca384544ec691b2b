// Elements of the types that kernels work on, 16-byte access to arrays that may begin anywhere, and passes
// over elements built on it. Private to CUDA kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include <sherd/base/error.h>
#include <sherd/kernels/device/dtype.h>

#include "launch.h"

namespace sherd::cuda {

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }

/// to = v, rounded to nearest, ties to even.
__device__ inline void put(float& to, float v) { to = v; }
__device__ inline void put(__nv_bfloat16& to, float v) { to = __float2bfloat16_rn(v); }
__device__ inline void put(__half& to, float v) { to = __float2half_rn(v); }

/// Calls f(T{}) with the device's type for `t`: f32 or bf16; f16 as well; f64 too. ops.h lets no other
/// through.
template <class F>
void with_f32_bf16(DType t, F&& f) {
  if (t == DType::f32) return f(float{});
  if (t == DType::bf16) return f(__nv_bfloat16{});
  throw InvalidArgument("cuda kernels: a dtype that this operation does not take");
}
template <class F>
void with_payload(DType t, F&& f) {
  if (t == DType::f16) return f(__half{});
  with_f32_bf16(t, f);
}
template <class F>
void with_float_type(DType t, F&& f) {
  if (t == DType::f64) return f(double{});
  with_payload(t, f);
}

/// N neighbouring elements (a power of two), moved in accesses of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
  __device__ T& operator[](int i) { return v[i]; }
  __device__ const T& operator[](int i) const { return v[i]; }
};

/// Elements [i, i + N) of p; p + i is aligned to a Vec.
template <int N, class T>
__device__ Vec<T, N> load(const T* p, int64_t i) {
  return *reinterpret_cast<const Vec<T, N>*>(p + i);
}
template <int N, class T>
__device__ void store(T* p, int64_t i, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p + i) = v;
}

template <class T, int N>
bool on_boundary(const T* p, int64_t element) {
  return (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(element) * sizeof(T)) %
             alignof(Vec<T, N>) ==
         0;
}

/// Division of `count` elements: `head` single ones, `vecs` groups of N, and the rest as single ones.
struct Cover {
  int64_t count = 0;
  int64_t head = 0;
  int64_t vecs = 0;

  __host__ __device__ int64_t singles(int n) const { return count - vecs * n; }
  /// The element that is the i-th of the single ones.
  __host__ __device__ int64_t single(int64_t i, int n) const { return i < head ? i : i + vecs * n; }
};

/// The cover by groups that are aligned in all arrays at once; single elements only where no group is aligned
/// in all. Null pointers do not count.
template <int N, class... T>
Cover cover(int64_t count, const T*... arrays) {
  for (int64_t head = 0; head < N && head + N <= count; ++head)
    if (((arrays == nullptr || on_boundary<T, N>(arrays, head)) && ...))
      return {count, head, (count - head) / N};
  return {count, 0, 0};
}

/// Runs op.template run<N>(i) for groups [i, i + N) of elements, N being Op::kVec or 1. The result for an
/// element must not depend on N.
template <class Op>
__global__ void __launch_bounds__(256) over_elements(Op op, Cover cover) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t p = thread; p < cover.vecs; p += threads) op.template run<Op::kVec>(cover.head + p * Op::kVec);
  const int64_t singles = cover.singles(Op::kVec);
  for (int64_t i = thread; i < singles; i += threads) op.template run<1>(cover.single(i, Op::kVec));
}

/// The same for `count` elements of the arrays that `op` touches.
template <class Op, class... T>
void for_elements(ExecutionContext& context, const char* what, const Op& op, int64_t count,
                  const T*... arrays) {
  if (count <= 0) return;
  const Cover c = cover<Op::kVec>(count, arrays...);
  launch(context, what, over_elements<Op>, grid_for(std::max(c.vecs, c.singles(Op::kVec))), op, c);
}

/// The shape of blocks that go over rows of `groups` groups of columns: x over the groups, y over rows.
inline dim3 row_block(int64_t groups) {
  unsigned x = 1;
  while (x < groups && x < 256) x *= 2;
  return dim3(x, 256 / x);
}
/// `count` in blocks of `each`, at most `most`.
inline unsigned blocks_of(int64_t count, int64_t each, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + each - 1) / each, 1, most));
}

/// Returns whether rows of `cols` elements all begin on boundaries of every array; null pointers do not
/// count.
template <int N, class... T>
bool rows_on_boundaries(int64_t cols, const T*... arrays) {
  return cols % N == 0 && ((arrays == nullptr || on_boundary<T, N>(arrays, 0)) && ...);
}

}  // namespace sherd::cuda
