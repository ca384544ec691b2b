#include <sherd/nn/kernels/latent/latent.h>

#include <sherd/kernels/device/cuda/vector.h>

// A block takes a row at a time; its threads take columns of heads, and pairs of rotary parts.
namespace sherd::cuda {
namespace {

constexpr unsigned kLatentThreads = 256;

struct LatentTurn {
  float cos, sin;
};
__device__ LatentTurn turn_of(const LatentArgs& a, int64_t row, int64_t i) {
  LatentTurn t;
  sincosf(__fmul_rn(static_cast<float>(a.heads.first_position + row % a.seq), a.inv_freq[i]), &t.sin, &t.cos);
  t.cos *= a.heads.rotation_scale;
  t.sin *= a.heads.rotation_scale;
  return t;
}

struct LatentPlaces {
  int64_t first, second;
};
__device__ LatentPlaces latent_places(const LatentHeads& h, int64_t i) {
  return h.interleaved ? LatentPlaces{2 * i, 2 * i + 1} : LatentPlaces{i, i + h.rope / 2};
}

template <class T>
__device__ void rotate(T* y, const T* x, const LatentHeads& h, int64_t i, const LatentTurn& t, float scale) {
  const LatentPlaces p = latent_places(h, i);
  const float x1 = to_float(x[p.first]), x2 = to_float(x[p.second]);
  put(y[i], scale * fmaf(x1, t.cos, -(x2 * t.sin)));
  put(y[i + h.rope / 2], scale * fmaf(x2, t.cos, x1 * t.sin));
}

template <class T>
__device__ void rotate_back(T* dx, float d1, float d2, const LatentHeads& h, int64_t i, const LatentTurn& t,
                            float scale) {
  const LatentPlaces p = latent_places(h, i);
  put(dx[p.first], scale * fmaf(d1, t.cos, d2 * t.sin));
  put(dx[p.second], scale * fmaf(d2, t.cos, -(d1 * t.sin)));
}

template <class T>
__global__ void __launch_bounds__(kLatentThreads) pack_latent_rows(LatentArgs a) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.nope + h.rope, width = key > h.value ? key : h.value, in_kv = h.nope + h.value,
                half = h.rope / 2;
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* const q = static_cast<const T*>(a.q.data) + r * h.heads * key;
    const T* const kv = static_cast<const T*>(a.kv.data) + r * h.heads * in_kv;
    const T* const shared = static_cast<const T*>(a.k_rope.data) + r * h.rope;
    T* const to_q = static_cast<T*>(a.qkv.data) + 3 * r * h.heads * width;
    T* const to_k = to_q + h.heads * width;
    T* const to_v = to_k + h.heads * width;
    for (int64_t j = threadIdx.x; j < h.heads * width; j += kLatentThreads) {
      const int64_t n = j / width, c = j % width;
      if (c < h.nope) {
        put(to_q[j], h.query_scale * to_float(q[n * key + c]));
        to_k[j] = kv[n * in_kv + c];
      } else if (c >= key) {
        put(to_q[j], 0.0f);
        put(to_k[j], 0.0f);
      }
      put(to_v[j], c < h.value ? to_float(kv[n * in_kv + h.nope + c]) : 0.0f);
    }
    for (int64_t j = threadIdx.x; j < h.heads * half; j += kLatentThreads) {
      const int64_t n = j / half, i = j % half;
      const LatentTurn t = turn_of(a, r, i);
      rotate(to_q + n * width + h.nope, q + n * key + h.nope, h, i, t, h.query_scale);
      rotate(to_k + n * width + h.nope, shared, h, i, t, 1.0f);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kLatentThreads) unpack_latent_rows(LatentArgs a) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.nope + h.rope, width = key > h.value ? key : h.value, in_kv = h.nope + h.value,
                half = h.rope / 2;
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    T* const dq = static_cast<T*>(a.q.data) + r * h.heads * key;
    T* const dkv = static_cast<T*>(a.kv.data) + r * h.heads * in_kv;
    const T* const of_q = static_cast<const T*>(a.qkv.data) + 3 * r * h.heads * width;
    const T* const of_k = of_q + h.heads * width;
    const T* const of_v = of_k + h.heads * width;
    for (int64_t j = threadIdx.x; j < h.heads * in_kv; j += kLatentThreads) {
      const int64_t n = j / in_kv, c = j % in_kv;
      dkv[j] = c < h.nope ? of_k[n * width + c] : of_v[n * width + c - h.nope];
    }
    for (int64_t j = threadIdx.x; j < h.heads * h.nope; j += kLatentThreads) {
      const int64_t n = j / h.nope, c = j % h.nope;
      put(dq[n * key + c], h.query_scale * to_float(of_q[n * width + c]));
    }
    for (int64_t j = threadIdx.x; j < h.heads * half; j += kLatentThreads) {
      const int64_t n = j / half, i = j % half;
      const T* const d = of_q + n * width + h.nope;
      rotate_back(dq + n * key + h.nope, to_float(d[i]), to_float(d[i + half]), h, i, turn_of(a, r, i),
                  h.query_scale);
    }
    for (int64_t i = threadIdx.x; i < half; i += kLatentThreads) {
      float d1 = 0, d2 = 0;
      for (int64_t n = 0; n < h.heads; ++n) {
        d1 += to_float(of_k[n * width + h.nope + i]);
        d2 += to_float(of_k[n * width + h.nope + half + i]);
      }
      rotate_back(static_cast<T*>(a.k_rope.data) + r * h.rope, d1, d2, h, i, turn_of(a, r, i), 1.0f);
    }
  }
}

Grid latent_grid(const LatentArgs& a) { return {dim3(blocks_of(a.rows, 1, 132 * 8)), dim3(kLatentThreads)}; }

void pack_latent(ExecutionContext& context, const LatentArgs& a) {
  if (a.rows == 0) return;
  with_f32_bf16(a.q.dtype,
                [&]<class T>(T) { launch(context, "pack_latent", pack_latent_rows<T>, latent_grid(a), a); });
}

void unpack_latent(ExecutionContext& context, const LatentArgs& a) {
  if (a.rows == 0) return;
  with_f32_bf16(a.q.dtype, [&]<class T>(T) {
    launch(context, "unpack_latent", unpack_latent_rows<T>, latent_grid(a), a);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const LatentKernels* LatentKernels::cuda() {
  static constexpr LatentKernels table{.pack_latent = cuda::pack_latent,
                                       .unpack_latent = cuda::unpack_latent};
  return &table;
}

}  // namespace sherd
