#include <sherd/nn/kernels/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>
#include <sherd/kernels/gemm/cpu_sgemm.h>

#include "cpu_exponentials.h"

// Each (batch, head) is copied into dense fp32 matrices [seq, head_dim] and worked in blocks of query rows,
// so that only the causal part of the scores (up to one block of slack) is computed. q is scaled on the way
// in. Backward goes over groups of query heads: a thread takes all that use one key head, in order, so that
// their sum in dk and dv is the same for any number of threads.

namespace sherd::cpu {

// cpu_cached.cpp
void cached_attention(ExecutionContext&, const CachedAttentionArgs&);

namespace {

constexpr int64_t kRows = 64;

/// The dimensions of one call and the places of one (batch, query head) in the packed tensors.
struct Layout {
  explicit Layout(const AttentionArgs& a)
      : seq(a.seq),
        heads(a.heads),
        kv_heads(a.kv_heads),
        group(a.heads / a.kv_heads),
        dim(a.head_dim),
        scale(1.0f / std::sqrt(static_cast<float>(a.head_dim))) {}
  int64_t seq, heads, kv_heads, group, dim;  // group: query heads that use one key head
  float scale;

  int64_t matrix() const { return (seq * dim + 31) / 32 * 32; }  // floats of a [seq, dim] matrix
  int64_t block() const { return kRows * seq; }                  // floats of a block of score rows
  /// q, k, v (part 0, 1, 2) of query head bh, counted over batch and heads.
  int64_t qkv(int64_t bh, int64_t part) const {
    const int64_t h = bh % heads, column = part == 0 ? h : heads + (part - 1) * kv_heads + h / group;
    return bh / heads * seq * qkv_stride() + column * dim;
  }
  int64_t out(int64_t bh) const { return bh / heads * seq * heads * dim + bh % heads * dim; }
  int64_t qkv_stride() const { return (heads + 2 * kv_heads) * dim; }
  int64_t out_stride() const { return heads * dim; }
};

template <class T>
void load(const Layout& l, float* dst, const T* src, int64_t stride, float factor = 1) {
  for (int64_t t = 0; t < l.seq; ++t) {
#pragma omp simd
    for (int64_t d = 0; d < l.dim; ++d) dst[t * l.dim + d] = float(src[t * stride + d]) * factor;
  }
}

template <class T>
void store(const Layout& l, T* dst, const float* src, int64_t stride, float factor = 1) {
  for (int64_t t = 0; t < l.seq; ++t) {
#pragma omp simd
    for (int64_t d = 0; d < l.dim; ++d) cpu::store(dst[t * stride + d], src[t * l.dim + d] * factor);
  }
}

/// scores[n, keys] = a[n, dim] b[keys, dim]^T
void dots(const Layout& l, float* scores, const float* a, const float* b, int64_t n, int64_t keys) {
  sgemm(false, true, n, keys, l.dim, 1, a, l.dim, b, l.dim, 0, scores, keys);
}

/// Returns the largest score of the head.
template <class T>
float forward(const Layout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  float *q = scratch, *k = q + l.matrix(), *v = k + l.matrix(), *o = v + l.matrix(), *p = o + l.matrix();
  const T* qkv = a.qkv.as<T>();
  load(l, q, qkv + l.qkv(bh, 0), l.qkv_stride(), l.scale);
  load(l, k, qkv + l.qkv(bh, 1), l.qkv_stride());
  load(l, v, qkv + l.qkv(bh, 2), l.qkv_stride());
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < l.seq; first += kRows) {
    const int64_t keys = std::min(l.seq, first + kRows), n = keys - first;
    dots(l, p, q + first * l.dim, k, n, keys);
    float sums[kRows];
    for (int64_t i = 0; i < n; ++i) {
      const auto [max, sum] = exponentials(p + i * keys, first + i + 1, keys);
      sums[i] = sum;
      largest = std::max(largest, max);
      a.lse[bh * l.seq + first + i] = max + std::log(sum);
    }
    sgemm(false, false, n, l.dim, keys, 1, p, keys, v, l.dim, 0, o + first * l.dim, l.dim);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < l.dim; ++d) o[(first + i) * l.dim + d] /= sums[i];
  }
  store(l, a.out.as<T>() + l.out(bh), o, l.out_stride());
  return largest;
}

/// Writes dq of query head bh and adds to dk and dv of its key head, which lie behind dq in `scratch`.
template <class T>
void backward_head(const Layout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  const int64_t size = l.matrix();
  float *q = scratch, *k = q + size, *v = k + size, *dout = v + size, *dq = dout + size, *dk = dq + size,
        *dv = dk + size, *p = dv + size, *dp = p + l.block();
  const T* qkv = a.qkv.as<T>();
  const T *out = a.out.as<T>() + l.out(bh), *dout_rows = a.dout.as<T>() + l.out(bh);
  load(l, q, qkv + l.qkv(bh, 0), l.qkv_stride(), l.scale);
  load(l, k, qkv + l.qkv(bh, 1), l.qkv_stride());
  load(l, v, qkv + l.qkv(bh, 2), l.qkv_stride());
  load(l, dout, dout_rows, l.out_stride());
  for (int64_t first = 0; first < l.seq; first += kRows) {
    const int64_t keys = std::min(l.seq, first + kRows), n = keys - first;
    dots(l, p, q + first * l.dim, k, n, keys);
    dots(l, dp, dout + first * l.dim, v, n, keys);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = first + i, count = row + 1;
      float delta = 0;  // sum of p * dp over the row
#pragma omp simd reduction(+ : delta)
      for (int64_t d = 0; d < l.dim; ++d)
        delta += float(out[row * l.out_stride() + d]) * dout[row * l.dim + d];
      const float lse = a.lse[bh * l.seq + row];
      float *pi = p + i * keys, *ds = dp + i * keys;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        pi[j] = exp_fast(pi[j] - lse);
        ds[j] = pi[j] * (ds[j] - delta);
      }
      std::fill(pi + count, pi + keys, 0.0f);
      std::fill(ds + count, ds + keys, 0.0f);
    }
    sgemm(true, false, keys, l.dim, n, 1, p, keys, dout + first * l.dim, l.dim, 1, dv, l.dim);
    sgemm(true, false, keys, l.dim, n, 1, dp, keys, q + first * l.dim, l.dim, 1, dk, l.dim);
    sgemm(false, false, n, l.dim, keys, 1, dp, keys, k, l.dim, 0, dq + first * l.dim, l.dim);
  }
  store(l, a.dqkv.as<T>() + l.qkv(bh, 0), dq, l.qkv_stride(), l.scale);
}

/// The query heads of key head `group`, counted over batch and key heads.
template <class T>
void backward(const Layout& l, const AttentionArgs& a, int64_t group, float* scratch) {
  const int64_t first = group * l.group, size = l.matrix();
  float *dk = scratch + 5 * size, *dv = dk + size;
  std::fill_n(dk, 2 * size, 0.0f);
  for (int64_t bh = first; bh < first + l.group; ++bh) backward_head<T>(l, a, bh, scratch);
  T* dqkv = a.dqkv.as<T>();
  store(l, dqkv + l.qkv(first, 1), dk, l.qkv_stride());
  store(l, dqkv + l.qkv(first, 2), dv, l.qkv_stride());
}

int64_t scratch_bytes(int64_t threads, int64_t count, int64_t floats) {
  return std::min(threads, count) * floats * 4;
}

/// Floats of a thread.
int64_t forward_floats(const Layout& l) { return 4 * l.matrix() + l.block(); }
int64_t backward_floats(const Layout& l) { return 7 * l.matrix() + 2 * l.block(); }

int64_t attention_scratch(const AttentionArgs& a, int threads) {
  if (a.seq == 0 || a.head_dim == 0) return 0;
  const Layout l(a);
  return a.dqkv.data != nullptr ? scratch_bytes(threads, a.batch * a.kv_heads, backward_floats(l))
                                : scratch_bytes(threads, a.batch * a.heads, forward_floats(l));
}

/// Runs work(i, scratch) for every i below `count`, each thread with `floats` floats of its own.
template <class F>
void for_each(ExecutionContext& ctx, int64_t count, int64_t floats, F&& work) {
  float* scratch = static_cast<float*>(ctx.scratch(scratch_bytes(ctx.threads, count, floats)));
  parallel_for(ctx, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i, scratch + omp_get_thread_num() * floats);
  });
}

void attention_forward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const Layout l(a);
  const int64_t count = a.batch * a.heads;
  std::vector<float> largest(static_cast<size_t>(a.max_logits != nullptr ? count : 0));
  with_activation(a.qkv.dtype, [&](auto type) {
    for_each(ctx, count, forward_floats(l), [&](int64_t bh, float* scratch) {
      const float score = forward<decltype(type)>(l, a, bh, scratch);
      if (!largest.empty()) largest[static_cast<size_t>(bh)] = score;
    });
  });
  for (size_t bh = 0; bh < largest.size(); ++bh) {
    float& most = a.max_logits[static_cast<int64_t>(bh) % a.heads];
    most = std::max(most, largest[bh]);
  }
}

void attention_backward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const Layout l(a);
  with_activation(a.qkv.dtype, [&](auto type) {
    for_each(ctx, a.batch * a.kv_heads, backward_floats(l),
             [&](int64_t group, float* scratch) { backward<decltype(type)>(l, a, group, scratch); });
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
