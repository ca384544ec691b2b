#include <sherd/nn/kernels/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>
#include <sherd/kernels/gemm/cpu_sgemm.h>

#include "cpu_bf16.h"
#include "cpu_exponentials.h"
#include "cpu_heads.h"

// Each (batch, head) is copied into dense fp32 matrices [seq, head_dim] and worked in blocks of query rows,
// so that only the scores that rows see (up to one block of slack) are computed. q is scaled on the way
// in. Backward goes over groups of query heads: a thread takes all that use one key head, in order, so that
// their sum in dk and dv is the same for any number of threads.

namespace sherd::cpu {

// cpu_cached.cpp
void cached_attention(ExecutionContext&, const CachedAttentionArgs&);

namespace {

constexpr int64_t kRows = 64;

/// Floats of a [seq, dim] matrix.
int64_t matrix(const HeadLayout& l) { return (l.seq * l.dim + 31) / 32 * 32; }

template <class T>
void load(const HeadLayout& l, float* dst, const T* src, int64_t stride, float factor = 1) {
  for (int64_t t = 0; t < l.seq; ++t) {
#pragma omp simd
    for (int64_t d = 0; d < l.dim; ++d) dst[t * l.dim + d] = float(src[t * stride + d]) * factor;
  }
}

template <class T>
void store(const HeadLayout& l, T* dst, const float* src, int64_t stride, float factor = 1) {
  for (int64_t t = 0; t < l.seq; ++t) {
#pragma omp simd
    for (int64_t d = 0; d < l.dim; ++d) cpu::store(dst[t * stride + d], src[t * l.dim + d] * factor);
  }
}

/// scores[n, keys] = a[n, dim] b[keys, dim]^T
void dots(const HeadLayout& l, float* scores, const float* a, const float* b, int64_t n, int64_t keys) {
  sgemm(false, true, n, keys, l.dim, 1, a, l.dim, b, l.dim, 0, scores, keys);
}

/// Returns the largest score of the head.
template <class T>
float forward(const HeadLayout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  float *q = scratch, *k = q + matrix(l), *v = k + matrix(l), *o = v + matrix(l), *p = o + matrix(l);
  const T* qkv = a.qkv.as<T>();
  load(l, q, qkv + l.qkv(bh, 0), l.qkv_stride(), l.scale);
  load(l, k, qkv + l.qkv(bh, 1), l.qkv_stride());
  load(l, v, qkv + l.qkv(bh, 2), l.qkv_stride());
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < l.seq; first += kRows) {
    const int64_t begin = l.first_key(bh, first), end = std::min(l.seq, first + kRows), n = end - first,
                  keys = end - begin;
    dots(l, p, q + first * l.dim, k + begin * l.dim, n, keys);
    float sums[kRows];
    for (int64_t i = 0; i < n; ++i) {
      const auto [max, sum] = exponentials(p + i * keys, l.seen(bh, first + i, begin), keys);
      sums[i] = sum;
      largest = std::max(largest, max);
      a.lse[bh * l.seq + first + i] = max + std::log(sum);
    }
    sgemm(false, false, n, l.dim, keys, 1, p, keys, v + begin * l.dim, l.dim, 0, o + first * l.dim, l.dim);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < l.dim; ++d) o[(first + i) * l.dim + d] /= sums[i];
  }
  store(l, a.out.as<T>() + l.out(bh), o, l.out_stride());
  return largest;
}

/// Writes dq of query head bh and adds to dk and dv of its key head, which lie behind dq in `scratch`.
template <class T>
void backward_head(const HeadLayout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  const int64_t size = matrix(l);
  float *q = scratch, *k = q + size, *v = k + size, *dout = v + size, *dq = dout + size, *dk = dq + size,
        *dv = dk + size, *p = dv + size, *dp = p + kRows * l.seq;
  const T* qkv = a.qkv.as<T>();
  const T *out = a.out.as<T>() + l.out(bh), *dout_rows = a.dout.as<T>() + l.out(bh);
  load(l, q, qkv + l.qkv(bh, 0), l.qkv_stride(), l.scale);
  load(l, k, qkv + l.qkv(bh, 1), l.qkv_stride());
  load(l, v, qkv + l.qkv(bh, 2), l.qkv_stride());
  load(l, dout, dout_rows, l.out_stride());
  for (int64_t first = 0; first < l.seq; first += kRows) {
    const int64_t begin = l.first_key(bh, first), stop = std::min(l.seq, first + kRows), n = stop - first,
                  keys = stop - begin, at = begin * l.dim;
    dots(l, p, q + first * l.dim, k + at, n, keys);
    dots(l, dp, dout + first * l.dim, v + at, n, keys);
    for (int64_t i = 0; i < n; ++i) {
      const SeenKeys seen = l.seen(bh, first + i, begin);
      const int64_t row = first + i, from = seen.first, count = seen.end, end = whole_vectors(count, keys);
      float delta = 0;  // sum of p * dp over the row
#pragma omp simd reduction(+ : delta)
      for (int64_t d = 0; d < l.dim; ++d)
        delta += float(out[row * l.out_stride() + d]) * dout[row * l.dim + d];
      const float lse = a.lse[bh * l.seq + row];
      float *pi = p + i * keys, *ds = dp + i * keys;
      std::fill_n(pi, from, 0.0f);
      std::fill_n(ds, from, 0.0f);
#pragma omp simd
      for (int64_t j = from; j < end; ++j) {
        pi[j] = j < count ? exp_bounded(pi[j] - lse) : 0.0f;
        ds[j] = j < count ? pi[j] * (ds[j] - delta) : 0.0f;
      }
      std::fill(pi + end, pi + keys, 0.0f);
      std::fill(ds + end, ds + keys, 0.0f);
    }
    sgemm(true, false, keys, l.dim, n, 1, p, keys, dout + first * l.dim, l.dim, 1, dv + at, l.dim);
    sgemm(true, false, keys, l.dim, n, 1, dp, keys, q + first * l.dim, l.dim, 1, dk + at, l.dim);
    sgemm(false, false, n, l.dim, keys, 1, dp, keys, k + at, l.dim, 0, dq + first * l.dim, l.dim);
  }
  store(l, a.dqkv.as<T>() + l.qkv(bh, 0), dq, l.qkv_stride(), l.scale);
}

/// The query heads of key head `group`, counted over batch and key heads.
template <class T>
void backward(const HeadLayout& l, const AttentionArgs& a, int64_t group, float* scratch) {
  const int64_t first = group * l.group, size = matrix(l);
  float *dk = scratch + 5 * size, *dv = dk + size;
  std::fill_n(dk, 2 * size, 0.0f);
  for (int64_t bh = first; bh < first + l.group; ++bh) backward_head<T>(l, a, bh, scratch);
  T* dqkv = a.dqkv.as<T>();
  store(l, dqkv + l.qkv(first, 1), dk, l.qkv_stride());
  store(l, dqkv + l.qkv(first, 2), dv, l.qkv_stride());
}

/// Floats of a thread.
int64_t forward_floats(const HeadLayout& l) { return 4 * matrix(l) + kRows * l.seq; }
int64_t backward_floats(const HeadLayout& l) { return 7 * matrix(l) + 2 * kRows * l.seq; }

int64_t attention_scratch(const AttentionArgs& a, int threads) {
  if (a.seq == 0 || a.head_dim == 0) return 0;
  const HeadLayout l(a);
  const bool bf16 = bf16_attention(a);
  return a.dqkv.data != nullptr
             ? scratch_bytes(threads, a.batch * a.kv_heads,
                             bf16 ? bf16_backward_floats(l) : backward_floats(l))
             : scratch_bytes(threads, a.batch * a.heads, bf16 ? bf16_forward_floats(l) : forward_floats(l));
}

void attention_forward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const HeadLayout l(a);
  const int64_t count = a.batch * a.heads;
  std::vector<float> largest(static_cast<size_t>(count));
  if (bf16_attention(a)) {
    bf16_forward(ctx, l, a, largest.data());
  } else {
    with_activation(a.qkv.dtype, [&]<class T>(T) {
      for_each(ctx, count, forward_floats(l), [&](int64_t bh, float* scratch) {
        largest[static_cast<size_t>(bh)] = forward<T>(l, a, bh, scratch);
      });
    });
  }
  if (a.max_logits == nullptr) return;
  for (size_t bh = 0; bh < largest.size(); ++bh) {
    float& most = a.max_logits[static_cast<int64_t>(bh) % a.heads];
    most = std::max(most, largest[bh]);
  }
}

void attention_backward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const HeadLayout l(a);
  if (bf16_attention(a)) return bf16_backward(ctx, l, a);
  with_activation(a.qkv.dtype, [&]<class T>(T) {
    for_each(ctx, a.batch * a.kv_heads, backward_floats(l),
             [&](int64_t group, float* scratch) { backward<T>(l, a, group, scratch); });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const AttentionKernels* AttentionKernels::cpu() {
  static constexpr AttentionKernels table{
      .attention_forward = cpu::attention_forward,
      .attention_backward = cpu::attention_backward,
      .cached_attention = cpu::cached_attention,
      .scratch = cpu::attention_scratch,
  };
  return &table;
}

}  // namespace sherd
