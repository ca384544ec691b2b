#include <sherd/nn/qk_norm.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/summed_gradient.h>
#include <sherd/nn/kernels/norm/norm.h>

namespace sherd::nn {

using namespace detail;

namespace {

/// Some neighbouring heads of every row, from column `begin` on.
struct Heads {
  int64_t rows, columns;  // of the packed tensor
  int64_t begin, count;
  int64_t width;  // of a head

  /// From the first of them on. (An empty one has no first row.)
  Tensor in(const Tensor& packed) const {
    return packed.flat(std::min(begin, packed.numel()), packed.numel());
  }
  /// [rows * count, width].
  Tensor gathered(Stream& s, const Tensor& packed) const {
    Tensor part = like(packed, {rows * count, width});
    ops::strided_copy(s, part, count * width, in(packed), columns, rows, count * width);
    return part;
  }
  void scatter(Stream& s, const Tensor& packed, const Tensor& part) const {
    ops::strided_copy(s, in(packed), columns, part, count * width, rows, count * width);
  }
  void copy(Stream& s, const Tensor& to, const Tensor& from) const {
    ops::strided_copy(s, in(to), columns, in(from), columns, rows, count * width);
  }
};

/// Heads with their weight and what backward needs of them.
struct Normed {
  Heads heads;
  Parameter weight;
  Tensor rstd;
  float base = 0;

  void forward(Stream& s, const Tensor& y, const Tensor& x, float eps, const ops::WholeRows& whole) const {
    const Tensor w = norm_weight(s, weight, base), in = as_dtype(s, heads.gathered(s, x), w.dtype()),
                 out = like(in);
    ops::rms_norm_forward(s, out, rstd, in, w, eps, whole);
    heads.scatter(s, y, as_dtype(s, out, y.dtype()));
  }
  void backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x, const TensorParallel& tp,
                const ops::WholeRows& whole) const {
    const Tensor w = norm_weight(s, weight, base), in = as_dtype(s, heads.gathered(s, x), w.dtype()),
                 d = as_dtype(s, heads.gathered(s, dy), w.dtype()), d_in = like(in);
    const auto into = [&](const GradTarget& dw) {
      if (dw.beta == 0) ops::fill(s, dw.grad, 0);
      ops::rms_norm_backward(s, d_in, dw.grad, d, in, w, rstd, {}, whole);
    };
    weight.frozen() ? into({like_f32(in, weight.shape()), 0}) : add_summed(s, tp, weight, into);
    heads.scatter(s, dx, as_dtype(s, d_in, dx.dtype()));
  }
  /// Sums x^2 over the rows here; with dy it sums dy * w * x.
  void sum(Stream& s, const Tensor& sums, const Tensor& x, const Tensor& dy) const {
    const Tensor w = norm_weight(s, weight, base), in = as_dtype(s, heads.gathered(s, x), w.dtype());
    if (!dy.defined()) return ops::rms_norm_sums(s, sums, in);
    ops::rms_norm_sums(s, sums, in, as_dtype(s, heads.gathered(s, dy), w.dtype()), w);
  }
};

/// Groups of ranks that this rank's rows belong to.
struct Groups {
  TensorParallel weights{};  // ranks over which gradients of the weights are summed
  TensorParallel columns{};  // ranks over which rows are
};

/// The whole rows of each of `all`; undefined in a group of one.
std::vector<ops::WholeRows> whole_rows(Stream& s, const std::vector<Normed>& all, const TensorParallel& tp,
                                       const Tensor& x, const Tensor& dy = {}) {
  std::vector<ops::WholeRows> whole(all.size());
  if (tp.size() == 1) return whole;
  const auto n = static_cast<int64_t>(all.size());
  const Tensor sums = like_f32(x, {n, x.size(0)});
  for (int64_t i = 0; i < n; ++i) {
    const Normed& part = all[static_cast<size_t>(i)];
    whole[static_cast<size_t>(i)] = {sums.rows(i, i + 1).flat(), part.heads.width * tp.size()};
    part.sum(s, whole[static_cast<size_t>(i)].sums, x, dy);
  }
  tp.comm->all_reduce(s, sums.unowned_view());
  return whole;
}

/// x with `all`, side by side from its first column on, normalised; further columns stay.
Var normed(const Var& packed, const std::vector<Normed>& all, float eps, const Groups& groups,
           const char* name = __builtin_FUNCTION()) {
  const Tensor x = packed.value();
  const Heads& last = all.back().heads;
  const int64_t end = last.begin + last.count * last.width;
  const Heads rest{x.size(0), x.size(1), end, 1, x.size(1) - end};
  std::vector<Parameter> weights;
  for (const Normed& part : all) weights.push_back(part.weight);
  return function(
      {packed},
      [&](Stream& s) {
        Tensor y = like(x);
        const std::vector<ops::WholeRows> whole = whole_rows(s, all, groups.columns, x);
        for (size_t i = 0; i < all.size(); ++i) all[i].forward(s, y, x, eps, whole[i]);
        rest.copy(s, y, x);
        return y;
      },
      [x, all, rest, groups](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(x);
        Tensor dx = like(x);
        const std::vector<ops::WholeRows> whole = whole_rows(s, all, groups.columns, x, dy);
        for (size_t i = 0; i < all.size(); ++i) all[i].backward(s, dx, dy, x, groups.weights, whole[i]);
        rest.copy(s, dx, dy);
        return {dx};
      },
      weights, name);
}

}  // namespace

Var qk_norm(const Var& qkv, const Parameter& q, const Parameter& k, int64_t heads, float eps,
            const TensorParallel& tp, float base) {
  const Tensor x = qkv.value();
  const int64_t width = numel_of(q.shape());
  const int64_t others = x.dim() == 2 && width > 0 ? x.size(1) / width - heads : 0, kv_heads = others / 2;
  if (heads < 1 || kv_heads < 1 || x.size(1) != (heads + 2 * kv_heads) * width || k.shape() != q.shape())
    throw ShapeMismatch(
        fmt::format("qk_norm: qkv is {}, must be [rows, ({} + 2 * kv_heads) * head_dim]; the weights of q {} "
                    "and of k {} must be "
                    "[head_dim]",
                    to_string(x.shape()), heads, to_string(q.shape()), to_string(k.shape())));
  const int64_t rows = x.size(0), columns = x.size(1);
  return normed(qkv,
                {{{rows, columns, 0, heads, width}, q, like_f32(x, {rows * heads}), base},
                 {{rows, columns, heads * width, kv_heads, width}, k, like_f32(x, {rows * kv_heads}), base}},
                eps, {.weights = tp});
}

Var projection_norm(const Var& in, const std::vector<Parameter>& weights, float eps,
                    const TensorParallel& tp) {
  const Tensor x = in.value();
  std::vector<Normed> all;
  int64_t end = 0;
  for (const Parameter& w : weights) end += numel_of(w.shape());
  if (weights.empty() || x.dim() != 2 || x.size(1) < end)
    throw ShapeMismatch(
        fmt::format("projection_norm: x is {}, must be [rows, {} or more], the columns of {} weights",
                    to_string(x.shape()), end, weights.size()));
  int64_t begin = 0;
  for (const Parameter& w : weights) {
    const int64_t columns = numel_of(w.shape());
    all.push_back({{x.size(0), x.size(1), begin, 1, columns}, w, like_f32(x, {x.size(0)})});
    begin += columns;
  }
  return normed(in, all, eps, {.columns = tp});
}

}  // namespace sherd::nn
