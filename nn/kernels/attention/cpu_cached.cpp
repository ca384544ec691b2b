#include <algorithm>
#include <cmath>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/nn/kernels/attention/attention.h>
#include <sherd/nn/kernels/attention/cached_attention.h>

#include "cpu_exponentials.h"

// Few rows, so every key and value is read about once, and the memory's speed is the bound: plain loops over
// rows of the cache, no copy. A thread takes whole (row, query head) pairs, so bits do not depend on the
// number of threads.

namespace sherd::cpu {
namespace {

/// `scores` has room for all keys and a head behind them.
template <class T>
void attend(const CachedAttentionArgs& a, int64_t row, int64_t head, float* scores) {
  const int64_t dim = a.head_dim, stride = a.kv_heads * dim, first = first_key(a.window, a.length + row),
                keys = a.length + row + 1 - first;
  const int64_t column = first * stride + head / (a.heads / a.kv_heads) * dim;
  const T *q = a.q.as<T>() + row * a.q_stride + head * dim, *k = a.k.as<T>() + column,
          *v = a.v.as<T>() + column;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  float* const sum_of_values = scores + keys;
  for (int64_t j = 0; j < keys; ++j) {
    const T* const key = k + j * stride;
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < dim; ++d) dot += float(q[d]) * scale * float(key[d]);
    scores[j] = dot;
  }
  const auto [max, of_keys] = exponentials(scores, {0, keys}, keys);
  // Infinite where the sink is far above all scores: the result is 0 then.
  const float sum = of_keys + (a.sinks != nullptr ? std::exp(a.sinks[head] - max) : 0.0f);
  std::fill_n(sum_of_values, dim, 0.0f);
  for (int64_t j = 0; j < keys; ++j) {
    const T* const value = v + j * stride;
    const float p = scores[j];
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) sum_of_values[d] += p * float(value[d]);
  }
  T* const out = a.out.as<T>() + (row * a.heads + head) * dim;
#pragma omp simd
  for (int64_t d = 0; d < dim; ++d) store(out[d], sum_of_values[d] / sum);
}

}  // namespace

void cached_attention(ExecutionContext& ctx, const CachedAttentionArgs& a) {
  const int64_t count = a.rows * a.heads, floats = a.length + a.rows + a.head_dim;
  if (count == 0 || a.head_dim == 0) return;
  const int64_t threads = std::min<int64_t>(ctx.threads, count);
  float* const scratch = static_cast<float*>(ctx.scratch(threads * floats * 4));
  with_activation(a.q.dtype, [&](auto type) {
    parallel_for(ctx, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        attend<decltype(type)>(a, i / a.heads, i % a.heads, scratch + omp_get_thread_num() * floats);
    });
  });
}

}  // namespace sherd::cpu
