// Heads of packed attention tensors, and their distribution over threads. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/nn/kernels/attention/attention.h>

#include "cpu_exponentials.h"

namespace sherd::cpu {

/// The dimensions of one call and the places of one (batch, query head) in the packed tensors.
struct HeadLayout {
  explicit HeadLayout(const AttentionArgs& a)
      : seq(a.seq),
        heads(a.heads),
        kv_heads(a.kv_heads),
        group(a.heads / a.kv_heads),
        dim(a.head_dim),
        window(a.window),
        scale(1.0f / std::sqrt(static_cast<float>(a.head_dim))),
        starts(a.starts) {}
  int64_t seq, heads, kv_heads, group, dim;  // group: query heads that use one key head
  int64_t window;
  float scale;
  const int32_t* starts;

  /// The first position that `row` of query head bh sees.
  int64_t first_key(int64_t bh, int64_t row) const {
    const int64_t in_window = sherd::first_key(window, row);
    return starts == nullptr ? in_window : std::max<int64_t>(in_window, starts[bh / heads * seq + row]);
  }

  /// q, k, v (part 0, 1, 2) of query head bh, counted over batch and heads.
  int64_t qkv(int64_t bh, int64_t part) const {
    const int64_t h = bh % heads, column = part == 0 ? h : heads + (part - 1) * kv_heads + h / group;
    return bh / heads * seq * qkv_stride() + column * dim;
  }
  int64_t out(int64_t bh) const { return bh / heads * seq * heads * dim + bh % heads * dim; }
  int64_t qkv_stride() const { return (heads + 2 * kv_heads) * dim; }
  int64_t out_stride() const { return heads * dim; }
  /// Returns the keys that row `row` of query head bh sees in a block whose first key is `begin`.
  SeenKeys seen(int64_t bh, int64_t row, int64_t begin) const {
    return {first_key(bh, row) - begin, row + 1 - begin};
  }
};

/// Bytes of scratch memory that for_each() requests.
inline int64_t scratch_bytes(int64_t threads, int64_t count, int64_t floats) {
  return std::min(threads, count) * floats * 4;
}

/// Runs work(i, scratch) for every i below `count`, each thread with `floats` floats of its own.
template <class F>
void for_each(ExecutionContext& ctx, int64_t count, int64_t floats, F&& work) {
  float* scratch = static_cast<float*>(ctx.scratch(scratch_bytes(ctx.threads, count, floats)));
  for_tasks(ctx, count, [&](int64_t i) { work(i, scratch + omp_get_thread_num() * floats); });
}

}  // namespace sherd::cpu
