#include "cpu_bf16.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include <sherd/kernels/device/cpu/features.h>

#include "cpu_panels.h"
#include "cpu_rows.h"

// A key head's k and v are packed once. Query rows are worked in blocks, of which only the keys in their windows (up to one
// block of rows and one panel of slack) are computed. Products span the documents that a block's rows see; probabilities of
// others are 0.

namespace sherd::cpu {
namespace {

constexpr int64_t kBlockRows = 32;  // whose scores stay in the second-level cache
constexpr int64_t kGroupRows = 64;  // of a product with a transposed block, which adds to all of dk or dv

/// One head's rows in the packed tensors.
struct Rows {
  const bf16* data;
  int64_t stride;
  const bf16* at(int64_t row) const { return data + row * stride; }
  PairedRows pairs(int64_t row) const { return {at(row), stride, 2}; }
};

Rows rows_of(const HeadLayout& l, const AttentionArgs& a, int64_t bh, int64_t part) {
  return {a.qkv.as<bf16>() + l.qkv(bh, part), l.qkv_stride()};
}

/// Hands out parts of a thread's scratch memory, each on cache lines of its own; without memory it counts them.
class Parts {
 public:
  explicit Parts(float* scratch) : next_(scratch) {}
  float* floats(int64_t count) {
    float* part = next_ == nullptr ? nullptr : next_ + used_;
    used_ += (count + 15) / 16 * 16;
    return part;
  }
  bf16* halves(int64_t count) { return reinterpret_cast<bf16*>(floats((count + 1) / 2)); }
  Panels panels(int64_t pairs, int64_t columns) { return {halves(panel_elements(pairs, columns)), pairs}; }
  int64_t used() const { return used_; }

 private:
  float* next_;
  int64_t used_ = 0;
};

/// Sizes in whole pairs and panels.
int64_t key_columns(const HeadLayout& l) { return whole_panels(l.seq); }
int64_t head_columns(const HeadLayout& l) { return whole_panels(l.dim); }
int64_t head_pairs(const HeadLayout& l) { return l.dim / 2; }

struct ForwardParts {
  ForwardParts(const HeadLayout& l, Parts& parts)
      : k(parts.panels(head_pairs(l), l.seq)),
        v(parts.panels(key_columns(l) / 2, l.dim)),
        scores(parts.floats(kBlockRows * key_columns(l))),
        out(parts.floats(kBlockRows * head_columns(l))),
        p(parts.halves(kBlockRows * key_columns(l))) {}
  Panels k;  // of k^T
  Panels v;
  float *scores, *out;
  bf16* p;
};

struct BackwardParts {
  BackwardParts(const HeadLayout& l, Parts& parts)
      : k(parts.panels(head_pairs(l), l.seq)),
        v(parts.panels(head_pairs(l), l.seq)),
        k_rows(parts.panels(key_columns(l) / 2, l.dim)),
        q(parts.panels(kGroupRows / 2, l.dim)),
        dout(parts.panels(kGroupRows / 2, l.dim)),
        dk(parts.floats(key_columns(l) * head_columns(l))),
        dv(parts.floats(key_columns(l) * head_columns(l))),
        scores(parts.floats(kBlockRows * key_columns(l))),
        dp(parts.floats(kBlockRows * key_columns(l))),
        dq(parts.floats(kBlockRows * head_columns(l))),
        ds(parts.halves(kBlockRows * key_columns(l))),
        paired_p(parts.halves(kGroupRows * key_columns(l))),
        paired_ds(parts.halves(kGroupRows * key_columns(l))) {}
  Panels k, v;     // of k^T and v^T
  Panels k_rows;   // of k
  Panels q, dout;  // of a group of rows
  float *dk, *dv, *scores, *dp, *dq;
  bf16* ds;
  bf16 *paired_p, *paired_ds;  // of a group: for each pair of rows the two elements of each key
};

/// A block of query rows and the keys that they may see: `keys` from `begin` on, and as many columns as panels have.
struct Block {
  Block(const HeadLayout& l, int64_t bh, int64_t from, int64_t height)
      : first(from),
        rows(std::min(height, l.seq - from)),
        begin(l.first_key(bh, from) / kPanel * kPanel),
        keys(from + rows - begin),
        columns(whole_panels(keys)) {}
  int64_t first, rows, begin, keys, columns;
};

/// c [rows, columns] = x of the block's rows times y, of the transposed keys or values.
void dots(const HeadLayout& l, const Block& b, const Rows& x, const Panels& y, float* c) {
  multiply({.m = b.rows,
            .n = b.columns,
            .pairs = head_pairs(l),
            .a = x.pairs(b.first),
            .b = y,
            .first_column = b.begin,
            .c = c,
            .ldc = b.columns});
}

/// c [rows, head] = x [rows, columns] times y, of the keys or values.
void weighted(const HeadLayout& l, const Block& b, const bf16* x, const Panels& y, float* c) {
  multiply({.m = b.rows,
            .n = head_columns(l),
            .pairs = b.columns / 2,
            .a = {x, b.columns, 2},
            .b = y,
            .first_pair = b.begin / 2,
            .c = c,
            .ldc = head_columns(l)});
}

void write_rows(const HeadLayout& l, bf16* to, int64_t stride, const float* from, int64_t rows,
                float factor) {
  for (int64_t t = 0; t < rows; ++t) round_row(to + t * stride, from + t * head_columns(l), l.dim, factor);
}

float forward_of_head(const HeadLayout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  Parts memory(scratch);
  const ForwardParts parts(l, memory);
  const Rows q = rows_of(l, a, bh, 0), k = rows_of(l, a, bh, 1), v = rows_of(l, a, bh, 2);
  pack_transposed(parts.k, k.data, k.stride, l.seq, l.dim);
  pack_rows(parts.v, v.data, v.stride, l.seq, l.dim);
  bf16* out = a.out.as<bf16>() + l.out(bh);
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < l.seq; first += kBlockRows) {
    const Block b(l, bh, first, kBlockRows);
    dots(l, b, q, parts.k, parts.scores);
    float sums[kBlockRows];
    for (int64_t i = 0; i < b.rows; ++i) {
      const int64_t at = i * b.columns;
      const auto [max, sum] =
          probabilities(parts.p + at, parts.scores + at, l.seen(bh, first + i, b.begin), b.columns, l.scale);
      sums[i] = sum;
      largest = std::max(largest, max * l.scale);
      a.lse[bh * l.seq + first + i] = max * l.scale + std::log(sum);
    }
    weighted(l, b, parts.p, parts.v, parts.out);
    for (int64_t i = 0; i < b.rows; ++i)
      round_row(out + (first + i) * l.out_stride(), parts.out + i * head_columns(l), l.dim, 1.0f / sums[i]);
  }
  return largest;
}

/// Row i of a block. A row behind the last sees nothing; its scores may be any.
ScoreRow score_row(const HeadLayout& l, const AttentionArgs& a, const BackwardParts& parts, const Block& b,
                   int64_t bh, int64_t i) {
  const int64_t row = b.first + i, at = l.out(bh) + row * l.out_stride();
  if (i >= b.rows) return {parts.scores, parts.dp, {}, 0, 0};
  const float delta = dot(a.out.as<bf16>() + at, a.dout.as<bf16>() + at, l.dim);
  return {parts.scores + i * b.columns, parts.dp + i * b.columns, l.seen(bh, row, b.begin),
          a.lse[bh * l.seq + row], delta};
}

/// Writes dq of a block's rows, and the block's p and ds into those of its group, `columns` keys wide.
void backward_of_block(const HeadLayout& l, const AttentionArgs& a, const BackwardParts& parts,
                       const Block& b, int64_t bh, bf16* paired_p, bf16* paired_ds, int64_t columns) {
  const Rows q = rows_of(l, a, bh, 0), dout{a.dout.as<bf16>() + l.out(bh), l.out_stride()};
  dots(l, b, q, parts.k, parts.scores);
  dots(l, b, dout, parts.v, parts.dp);
  for (int64_t i = 0; i < b.rows; i += 2)
    gradients({.even = score_row(l, a, parts, b, bh, i),
               .odd = score_row(l, a, parts, b, bh, i + 1),
               .scale = l.scale,
               .ds_even = parts.ds + i * b.columns,
               .ds_odd = parts.ds + (i + 1) * b.columns,
               .paired_p = paired_p + i * columns,
               .paired_ds = paired_ds + i * columns},
              b.columns);
  weighted(l, b, parts.ds, parts.k_rows, parts.dq);
  write_rows(l, a.dqkv.as<bf16>() + l.qkv(bh, 0) + b.first * l.qkv_stride(), l.qkv_stride(), parts.dq, b.rows,
             l.scale);
}

/// Writes dq of query head bh and adds to dk and dv of its key head.
void backward_of_head(const HeadLayout& l, const AttentionArgs& a, const BackwardParts& parts, int64_t bh) {
  const Rows q = rows_of(l, a, bh, 0), dout{a.dout.as<bf16>() + l.out(bh), l.out_stride()};
  for (int64_t first = 0; first < l.seq; first += kGroupRows) {
    const Block group(l, bh, first, kGroupRows);
    for (int64_t row = 0; row < group.rows; row += kBlockRows) {
      Block b(l, bh, first + row, kBlockRows);
      b.begin = group.begin, b.keys = b.first + b.rows - b.begin, b.columns = whole_panels(b.keys);
      backward_of_block(l, a, parts, b, bh, parts.paired_p + row * group.columns,
                        parts.paired_ds + row * group.columns, group.columns);
    }
    pack_rows(parts.q, q.at(first), q.stride, group.rows, l.dim);
    pack_rows(parts.dout, dout.at(first), dout.stride, group.rows, l.dim);
    // [keys, dim] += p^T dout, ds^T q. Of the keys behind the first block's, its rows see none.
    const int64_t pairs = (group.rows + 1) / 2,
                  first_keys = std::min(group.keys, first + kBlockRows - group.begin);
    const auto add = [&](float* to, const bf16* paired, const Panels& rows, int64_t key, int64_t keys,
                         int64_t pair) {
      multiply({.m = keys,
                .n = head_columns(l),
                .pairs = pairs - pair,
                .a = {paired + 2 * (pair * group.columns + key), 2, 2 * group.columns},
                .b = rows,
                .first_pair = pair,
                .c = to + (group.begin + key) * head_columns(l),
                .ldc = head_columns(l),
                .add = true});
    };
    for (const auto& [to, paired, rows] :
         {std::tuple(parts.dv, parts.paired_p, parts.dout), std::tuple(parts.dk, parts.paired_ds, parts.q)}) {
      add(to, paired, rows, 0, first_keys, 0);
      if (group.rows > kBlockRows) add(to, paired, rows, first_keys, group.keys - first_keys, kBlockRows / 2);
    }
  }
}

/// The query heads of key head `group`, counted over batch and key heads, in order.
void backward_of_group(const HeadLayout& l, const AttentionArgs& a, int64_t group, float* scratch) {
  Parts memory(scratch);
  const BackwardParts parts(l, memory);
  const int64_t first = group * l.group, sums = l.seq * head_columns(l);
  const Rows k = rows_of(l, a, first, 1), v = rows_of(l, a, first, 2);
  pack_transposed(parts.k, k.data, k.stride, l.seq, l.dim);
  pack_transposed(parts.v, v.data, v.stride, l.seq, l.dim);
  pack_rows(parts.k_rows, k.data, k.stride, l.seq, l.dim);
  std::fill_n(parts.dk, sums, 0.0f);
  std::fill_n(parts.dv, sums, 0.0f);
  for (int64_t bh = first; bh < first + l.group; ++bh) backward_of_head(l, a, parts, bh);
  bf16* dqkv = a.dqkv.as<bf16>();
  write_rows(l, dqkv + l.qkv(first, 1), l.qkv_stride(), parts.dk, l.seq, l.scale);
  write_rows(l, dqkv + l.qkv(first, 2), l.qkv_stride(), parts.dv, l.seq, 1);
}

}  // namespace

bool bf16_attention(const AttentionArgs& a) {
  return a.qkv.dtype == DType::bf16 && a.head_dim % 2 == 0 && features().bf16_products != nullptr;
}

int64_t bf16_forward_floats(const HeadLayout& l) {
  Parts parts(nullptr);
  ForwardParts(l, parts);
  return parts.used();
}

int64_t bf16_backward_floats(const HeadLayout& l) {
  Parts parts(nullptr);
  BackwardParts(l, parts);
  return parts.used();
}

void bf16_forward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a, float* largest) {
  for_each(ctx, a.batch * a.heads, bf16_forward_floats(l),
           [&](int64_t bh, float* scratch) { largest[bh] = forward_of_head(l, a, bh, scratch); });
}

void bf16_backward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a) {
  for_each(ctx, a.batch * a.kv_heads, bf16_backward_floats(l),
           [&](int64_t group, float* scratch) { backward_of_group(l, a, group, scratch); });
}

}  // namespace sherd::cpu
