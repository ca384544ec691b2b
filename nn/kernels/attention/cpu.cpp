#include <sherd/nn/kernels/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/features.h>
#include <sherd/kernels/gemm/cpu_panels.h>

#include "cpu_heads.h"
#include "cpu_rows.h"

// T is the type of the tensors, E that of what products take: bf16 for bf16 tensors where the processor has products for them, else
// f32. A key head's k and v are packed once. Query rows are worked in blocks, of which only the keys in their windows
// (up to one block of rows and one panel of slack) are computed. Products span the documents that a block's rows see;
// probabilities of others are 0. Backward goes over groups of query heads: a thread takes all that use one key head, in order,
// so that their sum in dk and dv is the same for any number of threads.

namespace sherd::cpu {

// cpu_cached.cpp
void cached_attention(ExecutionContext&, const CachedAttentionArgs&);

namespace {

constexpr int64_t kBlockRows = 32;  // whose scores stay in the second-level cache
constexpr int64_t kGroupRows = 64;  // of a product with a transposed block, which adds to all of dk or dv

/// Hands out parts of a thread's scratch memory, each on cache lines of its own; without memory it counts them.
class Parts {
 public:
  explicit Parts(float* scratch) : next_(scratch) {}
  template <class E = float>
  E* elements(int64_t count) {
    float* part = next_ == nullptr ? nullptr : next_ + used_;
    used_ += ((count + kFold<E> - 1) / kFold<E> + 15) / 16 * 16;
    return reinterpret_cast<E*>(part);
  }
  template <class E>
  Panels<E> panels(int64_t steps, int64_t columns) {
    return {elements<E>(panel_elements<E>(steps, columns)), steps};
  }
  int64_t used() const { return used_; }

 private:
  float* next_;
  int64_t used_ = 0;
};

/// Sizes in whole steps and panels.
int64_t key_columns(const HeadLayout& l) { return whole_panels(l.seq); }
int64_t head_columns(const HeadLayout& l) { return whole_panels(l.dim); }
template <class E>
int64_t head_steps(const HeadLayout& l) {
  return l.dim / kFold<E>;
}

/// One head's rows of a packed tensor.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  const T* at(int64_t row) const { return data + row * stride; }
};

/// Returns rows [first, first + count) in E, copied to `room` unless E is bf16. Rows of f32 are often several KiB apart, so that few
/// of a tile's fit into the first-level cache.
template <class E, class T>
Rows<E> near_rows(const HeadLayout& l, const Rows<T>& rows, int64_t first, int64_t count, float* room) {
  if constexpr (std::is_same_v<E, bf16>) {
    return {rows.at(first), rows.stride};
  } else {
    for (int64_t t = 0; t < count; ++t) {
      const T* const from = rows.at(first + t);
#pragma omp simd
      for (int64_t d = 0; d < l.dim; ++d) room[t * l.dim + d] = float(from[d]);
    }
    return {room, l.dim};
  }
}

/// Returns all rows in E, copied to `room` unless they are in E already.
template <class E, class T>
Rows<E> all_rows(const HeadLayout& l, const Rows<T>& rows, float* room) {
  if constexpr (std::is_same_v<E, T>)
    return rows;
  else
    return near_rows<E>(l, rows, 0, l.seq, room);
}

/// Returns the room for near_rows(); null where E is bf16.
template <class E>
float* room_of_group(const HeadLayout& l, Parts& parts) {
  return std::is_same_v<E, bf16> ? nullptr : parts.elements(std::min(kGroupRows, l.seq) * l.dim);
}
/// Returns the room for all_rows(), or for near_rows().
template <class T, class E>
float* room_of_rows(const HeadLayout& l, Parts& parts) {
  return std::is_same_v<E, T> ? room_of_group<E>(l, parts) : parts.elements(l.seq * l.dim);
}

template <class T>
Rows<T> rows_of(const HeadLayout& l, const AttentionArgs& a, int64_t bh, int64_t part) {
  return {a.qkv.as<T>() + l.qkv(bh, part), l.qkv_stride()};
}

/// to = from * factor, of `rows` rows of a head.
template <class E, class T>
void write_rows(const HeadLayout& l, T* to, int64_t stride, const float* from, int64_t rows, float factor) {
  for (int64_t t = 0; t < rows; ++t, to += stride, from += head_columns(l)) {
    if constexpr (std::is_same_v<E, bf16>) {
      round_row(to, from, l.dim, factor);
    } else {
#pragma omp simd
      for (int64_t d = 0; d < l.dim; ++d) store(to[d], from[d] * factor);
    }
  }
}

template <class T, class E>
struct ForwardParts {
  ForwardParts(const HeadLayout& l, Parts& parts)
      : k(parts.panels<E>(head_steps<E>(l), l.seq)),
        v(parts.panels<E>(key_columns(l) / kFold<E>, l.dim)),
        scores(parts.elements(kBlockRows * key_columns(l))),
        out(parts.elements(kBlockRows * head_columns(l))),
        rows(room_of_rows<T, E>(l, parts)) {
    if constexpr (std::is_same_v<E, float>)
      p = scores;
    else
      p = parts.elements<E>(kBlockRows * key_columns(l));
  }
  Panels<E> k;  // of k^T
  Panels<E> v;
  float *scores, *out, *rows;
  E* p;
};

template <class T, class E>
struct BackwardParts {
  BackwardParts(const HeadLayout& l, Parts& parts)
      : k(parts.panels<E>(head_steps<E>(l), l.seq)),
        v(parts.panels<E>(head_steps<E>(l), l.seq)),
        k_rows(parts.panels<E>(key_columns(l) / kFold<E>, l.dim)),
        q(parts.panels<E>(kGroupRows / kFold<E>, l.dim)),
        dout(parts.panels<E>(kGroupRows / kFold<E>, l.dim)),
        dk(parts.elements(key_columns(l) * head_columns(l))),
        dv(parts.elements(key_columns(l) * head_columns(l))),
        dq(parts.elements(kBlockRows * head_columns(l))),
        group_p(parts.elements<E>(kGroupRows * key_columns(l))),
        group_ds(parts.elements<E>(kGroupRows * key_columns(l))),
        q_rows(room_of_rows<T, E>(l, parts)),
        dout_rows(room_of_group<E>(l, parts)) {
    if constexpr (!std::is_same_v<E, float>) {
      scores = parts.elements(kBlockRows * key_columns(l));
      dp = parts.elements(kBlockRows * key_columns(l));
      ds = parts.elements<E>(kBlockRows * key_columns(l));
    }
  }
  Panels<E> k, v;     // of k^T and v^T
  Panels<E> k_rows;   // of k
  Panels<E> q, dout;  // of a group of rows
  float *dk, *dv, *dq;
  E *group_p, *group_ds;  // of a group: for each step of its rows the elements of each key
  float *q_rows, *dout_rows;
  float *scores = nullptr, *dp = nullptr;  // of a block in 16 bits; those in f32 become its p and ds
  E* ds = nullptr;
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

/// c [rows, columns] = x, the block's rows, times y, of the transposed keys or values. c's rows are `ldc` apart.
template <class E>
void dots(const HeadLayout& l, const Block& b, const Rows<E>& x, const Panels<E>& y, float* c, int64_t ldc) {
  multiply(PanelProduct<E>{.m = b.rows,
                           .n = b.columns,
                           .steps = head_steps<E>(l),
                           .a = {x.data, x.stride, kFold<E>},
                           .b = y,
                           .first_column = b.begin,
                           .c = c,
                           .ldc = ldc});
}

/// c [rows, head] = x [rows, columns] times y, of the keys or values. x's rows are `ldx` apart.
template <class E>
void weighted(const HeadLayout& l, const Block& b, const E* x, int64_t ldx, const Panels<E>& y, float* c) {
  multiply(PanelProduct<E>{.m = b.rows,
                           .n = head_columns(l),
                           .steps = b.columns / kFold<E>,
                           .a = {x, ldx, kFold<E>},
                           .b = y,
                           .first_step = b.begin / kFold<E>,
                           .c = c,
                           .ldc = head_columns(l)});
}

/// Row i of a block's scores becomes its row of p; returns the largest score and the sum of exponentials.
template <class T, class E>
std::pair<float, float> exponentials_of_row(const HeadLayout& l, const Block& b,
                                            const ForwardParts<T, E>& parts, int64_t bh, int64_t i) {
  const SeenKeys seen = l.seen(bh, b.first + i, b.begin);
  float* const scores = parts.scores + i * b.columns;
  if constexpr (std::is_same_v<E, float>)
    return probabilities(scores, seen, b.columns, l.scale);
  else
    return probabilities(parts.p + i * b.columns, scores, seen, b.columns, l.scale);
}

/// Returns the largest score of the head's rows that are not padding.
template <class T, class E>
float forward_of_head(const HeadLayout& l, const AttentionArgs& a, int64_t bh, float* scratch) {
  Parts memory(scratch);
  const ForwardParts<T, E> parts(l, memory);
  const Rows<E> k = all_rows<E>(l, rows_of<T>(l, a, bh, 1), parts.rows);
  pack_transposed(parts.k, k.data, k.stride, l.seq, l.dim);
  const Rows<E> v = all_rows<E>(l, rows_of<T>(l, a, bh, 2), parts.rows);
  pack_rows(parts.v, v.data, v.stride, l.seq, l.dim);
  T* out = a.out.as<T>() + l.out(bh);
  float largest = -std::numeric_limits<float>::infinity();
  const int64_t counted = a.rows_of(bh / l.heads);
  for (int64_t first = 0; first < l.seq; first += kBlockRows) {
    const Block b(l, bh, first, kBlockRows);
    dots(l, b, near_rows<E>(l, rows_of<T>(l, a, bh, 0), first, b.rows, parts.rows), parts.k, parts.scores,
         b.columns);
    float sums[kBlockRows];
    for (int64_t i = 0; i < b.rows; ++i) {
      const auto [max, sum] = exponentials_of_row(l, b, parts, bh, i);
      sums[i] = sum;
      if (first + i < counted) largest = std::max(largest, max * l.scale);
      a.lse[bh * l.seq + first + i] = max * l.scale + std::log(sum);
    }
    weighted(l, b, parts.p, b.columns, parts.v, parts.out);
    for (int64_t i = 0; i < b.rows; ++i)
      write_rows<E>(l, out + (first + i) * l.out_stride(), 0, parts.out + i * head_columns(l), 1,
                    1.0f / sums[i]);
  }
  return largest;
}

/// The rows of q and dout from a group's or block's first one on.
template <class E>
struct QueryRows {
  Rows<E> q, dout;
};

/// The gradients of a block's rows: writes its p and ds into those of its group, `columns` keys wide. Returns ds in rows
/// [columns].
template <class T, class E>
const E* gradients_of_block(const HeadLayout& l, const AttentionArgs& a, const BackwardParts<T, E>& parts,
                            const QueryRows<E>& of, const Block& b, int64_t bh, E* group_p, E* group_ds,
                            int64_t columns) {
  float *scores = parts.scores, *dp = parts.dp;
  if constexpr (std::is_same_v<E, float>) scores = group_p, dp = group_ds;
  dots(l, b, of.q, parts.k, scores, columns);
  dots(l, b, of.dout, parts.v, dp, columns);
  // A row behind the last sees nothing; its scores may be any.
  const auto row = [&](int64_t i) -> ScoreRow {
    const int64_t t = b.first + i;
    if (i >= b.rows) return {scores, dp, {}, 0, 0};
    const T* const out = a.out.as<T>() + l.out(bh) + t * l.out_stride();
    return {scores + i * columns, dp + i * columns, l.seen(bh, t, b.begin), a.lse[bh * l.seq + t],
            dot(out, of.dout.at(i), l.dim)};
  };
  for (int64_t i = 0; i < b.rows; i += kFold<E>) {
    const int64_t at = i * columns;
    if constexpr (std::is_same_v<E, float>)
      gradients(row(i), l.scale, group_p + at, group_ds + at, b.columns);
    else
      gradients({.even = row(i),
                 .odd = row(i + 1),
                 .scale = l.scale,
                 .ds_even = parts.ds + at,
                 .ds_odd = parts.ds + at + columns,
                 .paired_p = group_p + at,
                 .paired_ds = group_ds + at},
                b.columns);
  }
  if constexpr (std::is_same_v<E, float>) return group_ds;
  return parts.ds;
}

/// Adds the products of a group's p and ds with its rows of dout and q to dv and dk.
template <class T, class E>
void add_to_keys(const HeadLayout& l, const BackwardParts<T, E>& parts, const QueryRows<E>& of,
                 const Block& group) {
  pack_rows(parts.q, of.q.data, of.q.stride, group.rows, l.dim);
  pack_rows(parts.dout, of.dout.data, of.dout.stride, group.rows, l.dim);
  // [keys, dim] += p^T dout, ds^T q. Of the keys behind the first block's, its rows see none.
  const int64_t steps = (group.rows + kFold<E> - 1) / kFold<E>,
                first_keys = std::min(group.keys, group.first + kBlockRows - group.begin);
  const auto add = [&](float* to, const E* of_group, const Panels<E>& rows, int64_t key, int64_t keys,
                       int64_t step) {
    multiply(PanelProduct<E>{
        .m = keys,
        .n = head_columns(l),
        .steps = steps - step,
        .a = {of_group + kFold<E> * (step * group.columns + key), kFold<E>, kFold<E> * group.columns},
        .b = rows,
        .first_step = step,
        .c = to + (group.begin + key) * head_columns(l),
        .ldc = head_columns(l),
        .add = true});
  };
  for (const auto& [to, of_group, rows] :
       {std::tuple(parts.dv, parts.group_p, parts.dout), std::tuple(parts.dk, parts.group_ds, parts.q)}) {
    add(to, of_group, rows, 0, first_keys, 0);
    if (group.rows > kBlockRows)
      add(to, of_group, rows, first_keys, group.keys - first_keys, kBlockRows / kFold<E>);
  }
}

/// Writes dq of query head bh and adds to dk and dv of its key head.
template <class T, class E>
void backward_of_head(const HeadLayout& l, const AttentionArgs& a, const BackwardParts<T, E>& parts,
                      int64_t bh) {
  const Rows<T> q = rows_of<T>(l, a, bh, 0), dout{a.dout.as<T>() + l.out(bh), l.out_stride()};
  T* const dq = a.dqkv.as<T>() + l.qkv(bh, 0);
  for (int64_t first = 0; first < l.seq; first += kGroupRows) {
    const Block group(l, bh, first, kGroupRows);
    const QueryRows<E> of{near_rows<E>(l, q, first, group.rows, parts.q_rows),
                          near_rows<E>(l, dout, first, group.rows, parts.dout_rows)};
    for (int64_t row = 0; row < group.rows; row += kBlockRows) {
      Block b(l, bh, first + row, kBlockRows);
      b.begin = group.begin, b.keys = b.first + b.rows - b.begin, b.columns = whole_panels(b.keys);
      const int64_t at = row * group.columns;
      const QueryRows<E> of_block{{of.q.at(row), of.q.stride}, {of.dout.at(row), of.dout.stride}};
      const E* ds = gradients_of_block(l, a, parts, of_block, b, bh, parts.group_p + at, parts.group_ds + at,
                                       group.columns);
      weighted(l, b, ds, group.columns, parts.k_rows, parts.dq);
      write_rows<E>(l, dq + b.first * l.qkv_stride(), l.qkv_stride(), parts.dq, b.rows, l.scale);
    }
    add_to_keys(l, parts, of, group);
  }
}

/// The query heads of key head `group`, counted over batch and key heads, in order.
template <class T, class E>
void backward_of_group(const HeadLayout& l, const AttentionArgs& a, int64_t group, float* scratch) {
  Parts memory(scratch);
  const BackwardParts<T, E> parts(l, memory);
  const int64_t first = group * l.group, sums = l.seq * head_columns(l);
  const Rows<E> v = all_rows<E>(l, rows_of<T>(l, a, first, 2), parts.q_rows);
  pack_transposed(parts.v, v.data, v.stride, l.seq, l.dim);
  const Rows<E> k = all_rows<E>(l, rows_of<T>(l, a, first, 1), parts.q_rows);
  pack_transposed(parts.k, k.data, k.stride, l.seq, l.dim);
  pack_rows(parts.k_rows, k.data, k.stride, l.seq, l.dim);
  std::fill_n(parts.dk, sums, 0.0f);
  std::fill_n(parts.dv, sums, 0.0f);
  for (int64_t bh = first; bh < first + l.group; ++bh) backward_of_head(l, a, parts, bh);
  T* dqkv = a.dqkv.as<T>();
  write_rows<E>(l, dqkv + l.qkv(first, 1), l.qkv_stride(), parts.dk, l.seq, l.scale);
  write_rows<E>(l, dqkv + l.qkv(first, 2), l.qkv_stride(), parts.dv, l.seq, 1);
}

/// Floats of a thread.
template <class AllParts>
int64_t floats_of(const HeadLayout& l) {
  Parts parts(nullptr);
  AllParts(l, parts);
  return parts.used();
}

/// Calls f(T{}, E{}).
template <class F>
void with_types(const AttentionArgs& a, F f) {
  if (a.qkv.dtype == DType::bf16 && a.head_dim % 2 == 0 && features().bf16_products != nullptr)
    return f(bf16{}, bf16{});
  with_activation(a.qkv.dtype, [&](auto type) { f(type, float{}); });
}

int64_t attention_scratch(const AttentionArgs& a, int threads) {
  if (a.seq == 0 || a.head_dim == 0) return 0;
  const HeadLayout l(a);
  int64_t bytes = 0;
  with_types(a, [&]<class T, class E>(T, E) {
    bytes = a.dqkv.data != nullptr
                ? scratch_bytes(threads, a.batch * a.kv_heads, floats_of<BackwardParts<T, E>>(l))
                : scratch_bytes(threads, a.batch * a.heads, floats_of<ForwardParts<T, E>>(l));
  });
  return bytes;
}

void attention_forward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const HeadLayout l(a);
  const int64_t count = a.batch * a.heads;
  std::vector<float> largest(static_cast<size_t>(count));
  with_types(a, [&]<class T, class E>(T, E) {
    for_each(ctx, count, floats_of<ForwardParts<T, E>>(l), [&](int64_t bh, float* scratch) {
      largest[static_cast<size_t>(bh)] = forward_of_head<T, E>(l, a, bh, scratch);
    });
  });
  if (a.max_logits == nullptr) return;
  for (size_t bh = 0; bh < largest.size(); ++bh) {
    float& most = a.max_logits[static_cast<int64_t>(bh) % a.heads];
    most = std::max(most, largest[bh]);
  }
}

void attention_backward(ExecutionContext& ctx, const AttentionArgs& a) {
  if (a.seq == 0 || a.head_dim == 0) return;
  const HeadLayout l(a);
  with_types(a, [&]<class T, class E>(T, E) {
    for_each(ctx, a.batch * a.kv_heads, floats_of<BackwardParts<T, E>>(l),
             [&](int64_t group, float* scratch) { backward_of_group<T, E>(l, a, group, scratch); });
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
