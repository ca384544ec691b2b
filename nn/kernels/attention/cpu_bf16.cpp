#include "cpu_bf16.h"

#include <limits>
#include <tuple>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/features.h>
#include <sherd/kernels/device/cpu/vector_math.h>
#include <sherd/kernels/gemm/cpu_bf16.h>

#include "cpu_exponentials.h"

// q, k and v are read where they are, in blocks of query rows of which only the keys in their windows (up to one block of
// slack) are computed, as cpu.cpp does for f32. Products span all documents of a row; probabilities of others are 0.

namespace sherd::cpu {
namespace {

constexpr int64_t kBlockRows = 128;

/// One head's rows in the packed tensors.
struct Rows {
  const bf16* data;
  int64_t stride;
  const bf16* at(int64_t row) const { return data + row * stride; }
};

Rows rows_of(const HeadLayout& l, const AttentionArgs& a, int64_t bh, int64_t part) {
  return {a.qkv.as<bf16>() + l.qkv(bh, part), l.qkv_stride()};
}

int64_t padded(int64_t floats) { return (floats + 31) / 32 * 32; }
/// Floats of a block's scores, and of the same in bf16.
int64_t block_floats(const HeadLayout& l) { return padded(kBlockRows * l.seq); }
int64_t half_floats(const HeadLayout& l) { return padded((kBlockRows * l.seq + 1) / 2); }

/// Products of one block of query rows, with keys from `begin` on.
struct ForwardBlock {
  int64_t first, rows, begin, keys;
  Bf16Product scores;  // [rows, keys] = q k^T
  Bf16Product out;     // [rows, dim] = p v
};
struct BackwardBlock {
  int64_t first, rows, begin, keys;
  Bf16Product scores, dp;  // [rows, keys] = q k^T, dout v^T
  Bf16Product dv, dk;      // [keys, dim] += p^T dout, ds^T q
  Bf16Product dq;          // [rows, dim] = ds k
};

/// Calls make(first row, rows, first key, keys) for every block of query rows.
template <class F>
void for_blocks(const HeadLayout& l, F make) {
  const OneThread one;
  for (int64_t first = 0; first < l.seq; first += kBlockRows) {
    const int64_t begin = first_key(l.window, first), end = std::min(l.seq, first + kBlockRows);
    make(first, end - first, begin, end - begin);
  }
}

/// [rows, keys] = x y^T of rows in packed tensors.
Bf16Product dots(const HeadLayout& l, int64_t rows, int64_t keys, int64_t ldx, int64_t ldy) {
  return Bf16Product(
      {.trans_b = true, .m = rows, .n = keys, .k = l.dim, .lda = ldx, .ldb = ldy, .ldc = keys});
}
/// [rows, dim] = p y, with p [rows, keys] and y in a packed tensor.
Bf16Product weighted(const HeadLayout& l, int64_t rows, int64_t keys, int64_t ldy) {
  return Bf16Product({.m = rows, .n = l.dim, .k = keys, .lda = keys, .ldb = ldy, .ldc = l.dim});
}
/// [keys, dim] += p^T y
Bf16Product transposed(const HeadLayout& l, int64_t rows, int64_t keys, int64_t ldy) {
  return Bf16Product(
      {.trans_a = true, .m = keys, .n = l.dim, .k = rows, .lda = keys, .ldb = ldy, .ldc = l.dim, .beta = 1});
}

void write_rows(const HeadLayout& l, bf16* to, int64_t stride, const float* from, int64_t rows,
                float factor) {
  for (int64_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (int64_t d = 0; d < l.dim; ++d) store(to[t * stride + d], from[t * l.dim + d] * factor);
  }
}

float forward_of_head(const HeadLayout& l, const AttentionArgs& a, const std::vector<ForwardBlock>& blocks,
                      int64_t bh, float* scratch) {
  float *scores = scratch, *o = scores + block_floats(l);
  auto* p = reinterpret_cast<bf16*>(o + padded(kBlockRows * l.dim));
  const Rows q = rows_of(l, a, bh, 0), k = rows_of(l, a, bh, 1), v = rows_of(l, a, bh, 2);
  bf16* out = a.out.as<bf16>() + l.out(bh);
  float largest = -std::numeric_limits<float>::infinity();
  for (const auto& [first, n, begin, keys, dots_of_block, out_of_block] : blocks) {
    dots_of_block.run(q.at(first), k.at(begin), scores);
    float sums[kBlockRows];
    for (int64_t i = 0; i < n; ++i) {
      const auto [max, sum] =
          exponentials(p + i * keys, scores + i * keys, l.seen(bh, first + i, begin), keys, l.scale);
      sums[i] = sum;
      largest = std::max(largest, max * l.scale);
      a.lse[bh * l.seq + first + i] = max * l.scale + std::log(sum);
    }
    out_of_block.run(p, v.at(begin), o);
    for (int64_t i = 0; i < n; ++i)
      write_rows(l, out + (first + i) * l.out_stride(), l.out_stride(), o + i * l.dim, 1, 1.0f / sums[i]);
  }
  return largest;
}

/// Turns scores into p and dp into the scores' gradients, for query row `row` and `keys` keys from `begin` on.
void gradient_of_row(const HeadLayout& l, const AttentionArgs& a, int64_t bh, int64_t row, int64_t begin,
                     int64_t keys, const float* scores, const float* dp, bf16* p, bf16* ds) {
  const bf16 *out = a.out.as<bf16>() + l.out(bh) + row * l.out_stride(),
             *dout = a.dout.as<bf16>() + l.out(bh) + row * l.out_stride();
  float delta = 0;  // sum of p * dp over the row
#pragma omp simd reduction(+ : delta)
  for (int64_t d = 0; d < l.dim; ++d) delta += float(out[d]) * float(dout[d]);
  const float lse = a.lse[bh * l.seq + row], scale = l.scale;
  const SeenKeys seen = l.seen(bh, row, begin);
  const int64_t from = seen.first, count = seen.end, end = whole_vectors(count, keys);
  std::fill_n(p, from, bf16(0.0f));
  std::fill_n(ds, from, bf16(0.0f));
#pragma omp simd
  for (int64_t j = from; j < end; ++j) {
    const float e = j < count ? exp_bounded(scale * scores[j] - lse) : 0.0f;
    store(p[j], e);
    store(ds[j], j < count ? e * (dp[j] - delta) : 0.0f);
  }
  std::fill(p + end, p + keys, bf16(0.0f));
  std::fill(ds + end, ds + keys, bf16(0.0f));
}

/// Writes dq of query head bh and adds to dk and dv of its key head.
void backward_of_head(const HeadLayout& l, const AttentionArgs& a, const std::vector<BackwardBlock>& blocks,
                      int64_t bh, float* dk, float* dv, float* scratch) {
  float *scores = scratch, *dp = scores + block_floats(l), *dq = dp + block_floats(l);
  auto* p = reinterpret_cast<bf16*>(dq + padded(kBlockRows * l.dim));
  bf16* ds = p + 2 * half_floats(l);
  const Rows q = rows_of(l, a, bh, 0), k = rows_of(l, a, bh, 1), v = rows_of(l, a, bh, 2);
  const Rows dout{a.dout.as<bf16>() + l.out(bh), l.out_stride()};
  for (const BackwardBlock& block : blocks) {
    const auto [first, n, begin, keys] = std::tuple(block.first, block.rows, block.begin, block.keys);
    block.scores.run(q.at(first), k.at(begin), scores);
    block.dp.run(dout.at(first), v.at(begin), dp);
    for (int64_t i = 0; i < n; ++i)
      gradient_of_row(l, a, bh, first + i, begin, keys, scores + i * keys, dp + i * keys, p + i * keys,
                      ds + i * keys);
    block.dv.run(p, dout.at(first), dv + begin * l.dim);
    block.dk.run(ds, q.at(first), dk + begin * l.dim);
    block.dq.run(ds, k.at(begin), dq);
    write_rows(l, a.dqkv.as<bf16>() + l.qkv(bh, 0) + first * l.qkv_stride(), l.qkv_stride(), dq, n, l.scale);
  }
}

/// The query heads of key head `group`, counted over batch and key heads, in order.
void backward_of_group(const HeadLayout& l, const AttentionArgs& a, const std::vector<BackwardBlock>& blocks,
                       int64_t group, float* scratch) {
  const int64_t first = group * l.group, size = padded(l.seq * l.dim);
  float *dk = scratch, *dv = dk + size;
  std::fill_n(dk, 2 * size, 0.0f);
  for (int64_t bh = first; bh < first + l.group; ++bh) backward_of_head(l, a, blocks, bh, dk, dv, dv + size);
  bf16* dqkv = a.dqkv.as<bf16>();
  write_rows(l, dqkv + l.qkv(first, 1), l.qkv_stride(), dk, l.seq, l.scale);
  write_rows(l, dqkv + l.qkv(first, 2), l.qkv_stride(), dv, l.seq, 1);
}

}  // namespace

bool bf16_attention(const AttentionArgs& a) {
  return a.qkv.dtype == DType::bf16 && features().bf16_products != nullptr;
}

int64_t bf16_forward_floats(const HeadLayout& l) {
  return block_floats(l) + padded(kBlockRows * l.dim) + half_floats(l);
}

int64_t bf16_backward_floats(const HeadLayout& l) {
  return 2 * padded(l.seq * l.dim) + 2 * block_floats(l) + padded(kBlockRows * l.dim) + 2 * half_floats(l);
}

void bf16_forward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a, float* largest) {
  std::vector<ForwardBlock> blocks;
  const int64_t stride = l.qkv_stride();
  for_blocks(l, [&](int64_t first, int64_t rows, int64_t begin, int64_t keys) {
    blocks.push_back(
        {first, rows, begin, keys, dots(l, rows, keys, stride, stride), weighted(l, rows, keys, stride)});
  });
  for_each(ctx, a.batch * a.heads, bf16_forward_floats(l),
           [&](int64_t bh, float* scratch) { largest[bh] = forward_of_head(l, a, blocks, bh, scratch); });
}

void bf16_backward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a) {
  std::vector<BackwardBlock> blocks;
  const int64_t in = l.qkv_stride(), out = l.out_stride();
  for_blocks(l, [&](int64_t first, int64_t rows, int64_t begin, int64_t keys) {
    blocks.push_back({first, rows, begin, keys, dots(l, rows, keys, in, in), dots(l, rows, keys, out, in),
                      transposed(l, rows, keys, out), transposed(l, rows, keys, in),
                      weighted(l, rows, keys, in)});
  });
  for_each(ctx, a.batch * a.kv_heads, bf16_backward_floats(l),
           [&](int64_t group, float* scratch) { backward_of_group(l, a, blocks, group, scratch); });
}

}  // namespace sherd::cpu
