#include <sherd/nn/kernels/attention/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <sherd/kernels/device/reference/access.h>
#include <sherd/nn/kernels/attention/cached_attention.h>

namespace sherd::reference {
namespace {

/// Place of one (batch, query head) in the packed tensors, with the key head that it uses.
struct Head {
  const AttentionArgs& a;
  int64_t b, h;

  /// Index into qkv of component d of row t of q (part 0), k (1) or v (2).
  int64_t in(int part, int64_t t, int64_t d) const {
    const int64_t key_head = h / (a.heads / a.kv_heads);
    const int64_t head = part == 0 ? h : a.heads + (part - 1) * a.kv_heads + key_head;
    return ((b * a.seq + t) * (a.heads + 2 * a.kv_heads) + head) * a.head_dim + d;
  }
  int64_t out(int64_t t, int64_t d) const { return ((b * a.seq + t) * a.heads + h) * a.head_dim + d; }
  int64_t lse(int64_t t) const { return (b * a.heads + h) * a.seq + t; }
  /// The first position that t sees.
  int64_t first(int64_t t) const {
    const int64_t in_window = first_key(a.window, t);
    return a.starts == nullptr ? in_window : std::max<int64_t>(in_window, a.starts[b * a.seq + t]);
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(a.head_dim)); }

  double score(int64_t i, int64_t j) const {
    double dot = 0;
    for (int64_t d = 0; d < a.head_dim; ++d) dot += get(a.qkv, in(0, i, d)) * get(a.qkv, in(1, j, d));
    return dot * scale();
  }
};

void forward(const Head& head) {
  const AttentionArgs& a = head.a;
  std::vector<double> p(static_cast<size_t>(a.seq));
  for (int64_t i = 0; i < a.seq; ++i) {
    const int64_t begin = head.first(i);
    const auto first = p.begin() + begin, row = p.begin() + i + 1;  // the part that the row sees
    for (int64_t j = begin; j <= i; ++j) p[static_cast<size_t>(j)] = head.score(i, j);
    if (a.max_logits != nullptr && i < a.rows_of(head.b))
      for (auto it = first; it != row; ++it)
        a.max_logits[head.h] = std::fmax(a.max_logits[head.h], static_cast<float>(*it));
    const double max = *std::max_element(first, row);
    double sum = 0;
    for (auto it = first; it != row; ++it) sum += * it = std::exp(*it - max);
    for (int64_t d = 0; d < a.head_dim; ++d) {
      double o = 0;
      for (int64_t j = begin; j <= i; ++j) o += p[static_cast<size_t>(j)] * get(a.qkv, head.in(2, j, d));
      put(a.out, head.out(i, d), o / sum);
    }
    a.lse[head.lse(i)] = static_cast<float>(max + std::log(sum));
  }
}

/// Writes dq of a query head and adds to dk and dv, [seq, head_dim], of its key head.
void backward(const Head& head, std::vector<double>& dk, std::vector<double>& dv) {
  const AttentionArgs& a = head.a;
  const int64_t D = a.head_dim;
  std::vector<double> dq(static_cast<size_t>(a.seq * D));
  for (int64_t i = 0; i < a.seq; ++i) {
    double delta = 0;  // sum over j of p * dp
    for (int64_t d = 0; d < D; ++d) delta += get(a.dout, head.out(i, d)) * get(a.out, head.out(i, d));
    for (int64_t j = head.first(i); j <= i; ++j) {
      const double p = std::exp(head.score(i, j) - a.lse[head.lse(i)]);
      double dp = 0;
      for (int64_t d = 0; d < D; ++d) {
        const double dout = get(a.dout, head.out(i, d));
        dp += dout * get(a.qkv, head.in(2, j, d));
        dv[static_cast<size_t>(j * D + d)] += p * dout;
      }
      const double ds = p * (dp - delta) * head.scale();
      for (int64_t d = 0; d < D; ++d) {
        dq[static_cast<size_t>(i * D + d)] += ds * get(a.qkv, head.in(1, j, d));
        dk[static_cast<size_t>(j * D + d)] += ds * get(a.qkv, head.in(0, i, d));
      }
    }
  }
  for (int64_t t = 0; t < a.seq; ++t)
    for (int64_t d = 0; d < D; ++d) put(a.dqkv, head.in(0, t, d), dq[static_cast<size_t>(t * D + d)]);
}

/// The query heads [first, last) of batch item b, which use one key head.
void backward_group(const AttentionArgs& a, int64_t b, int64_t first, int64_t last) {
  std::vector<double> dk(static_cast<size_t>(a.seq * a.head_dim)), dv(dk.size());
  for (int64_t h = first; h < last; ++h) backward({a, b, h}, dk, dv);
  const Head head{a, b, first};
  for (int64_t t = 0; t < a.seq; ++t) {
    for (int64_t d = 0; d < a.head_dim; ++d) {
      const auto i = static_cast<size_t>(t * a.head_dim + d);
      put(a.dqkv, head.in(1, t, d), dk[i]);
      put(a.dqkv, head.in(2, t, d), dv[i]);
    }
  }
}

void attention_forward(ExecutionContext&, const AttentionArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h) forward({a, b, h});
}

void attention_backward(ExecutionContext&, const AttentionArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; h += a.heads / a.kv_heads)
      backward_group(a, b, h, h + a.heads / a.kv_heads);
}

void cached_attention(ExecutionContext&, const CachedAttentionArgs& a) {
  const int64_t D = a.head_dim, stride = a.kv_heads * D;  // stride: of a row of k and v
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t first = first_key(a.window, a.length + i);
      const int64_t column = first * stride + h / (a.heads / a.kv_heads) * D;  // of the key head
      std::vector<double> p(static_cast<size_t>(a.length + i + 1 - first));
      for (size_t j = 0; j < p.size(); ++j) {
        const int64_t row = static_cast<int64_t>(j) * stride + column;
        for (int64_t d = 0; d < D; ++d) p[j] += get(a.q, i * a.q_stride + h * D + d) * get(a.k, row + d);
        p[j] *= scale;
      }
      const double sink = a.sinks != nullptr ? a.sinks[h] : -std::numeric_limits<double>::infinity();
      const double max = std::max(*std::max_element(p.begin(), p.end()), sink);
      double sum = std::exp(sink - max);
      for (double& x : p) sum += x = std::exp(x - max);
      for (int64_t d = 0; d < D; ++d) {
        double o = 0;
        for (size_t j = 0; j < p.size(); ++j)
          o += p[j] * get(a.v, static_cast<int64_t>(j) * stride + column + d);
        put(a.out, (i * a.heads + h) * D + d, o / sum);
      }
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const AttentionKernels* AttentionKernels::reference() {
  static constexpr AttentionKernels table{
      .attention_forward = reference::attention_forward,
      .attention_backward = reference::attention_backward,
      .cached_attention = reference::cached_attention,
  };
  return &table;
}

}  // namespace sherd
