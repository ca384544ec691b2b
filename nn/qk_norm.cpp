#include <sherd/nn/qk_norm.h>

#include <fmt/format.h>

#include <algorithm>

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

  void forward(Stream& s, const Tensor& y, const Tensor& x, float eps) const {
    const Tensor w = norm_weight(s, weight, base), in = as_dtype(s, heads.gathered(s, x), w.dtype()),
                 out = like(in);
    ops::rms_norm_forward(s, out, rstd, in, w, eps);
    heads.scatter(s, y, as_dtype(s, out, y.dtype()));
  }
  void backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const TensorParallel& tp) const {
    const Tensor w = norm_weight(s, weight, base), in = as_dtype(s, heads.gathered(s, x), w.dtype()),
                 d = as_dtype(s, heads.gathered(s, dy), w.dtype()), d_in = like(in);
    const auto into = [&](const GradTarget& dw) {
      if (dw.beta == 0) ops::fill(s, dw.grad, 0);
      ops::rms_norm_backward(s, d_in, dw.grad, d, in, w, rstd);
    };
    weight.trainable() ? add_summed(s, tp, weight, into) : into({like_f32(in, weight.shape()), 0});
    heads.scatter(s, dx, as_dtype(s, d_in, dx.dtype()));
  }
};

/// qkv with q and k normalised; v, of k's width, stays.
Var normed(const Var& qkv, const Normed& of_q, const Normed& of_k, float eps, const TensorParallel& tp,
           const char* name = __builtin_FUNCTION()) {
  const Tensor x = qkv.value();
  const Heads& keys = of_k.heads;
  const Heads v{keys.rows, keys.columns, keys.begin + keys.count * keys.width, keys.count, keys.width};
  return function(
      {qkv},
      [&](Stream& s) {
        Tensor y = like(x);
        of_q.forward(s, y, x, eps);
        of_k.forward(s, y, x, eps);
        v.copy(s, y, x);
        return y;
      },
      [x, of_q, of_k, v, tp](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(x);
        Tensor dx = like(x);
        of_q.backward(s, dx, dy, x, tp);
        of_k.backward(s, dx, dy, x, tp);
        v.copy(s, dx, dy);
        return {dx};
      },
      {of_q.weight, of_k.weight}, name);
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
  return normed(qkv, {{rows, columns, 0, heads, width}, q, like_f32(x, {rows * heads}), base},
                {{rows, columns, heads * width, kv_heads, width}, k, like_f32(x, {rows * kv_heads}), base},
                eps, tp);
}

Var projection_norm(const Var& qkv, const Parameter& q, const Parameter& k, float eps) {
  const Tensor x = qkv.value();
  const int64_t of_q = numel_of(q.shape()), of_k = numel_of(k.shape());
  if (x.dim() != 2 || x.size(1) != of_q + 2 * of_k)
    throw ShapeMismatch(
        fmt::format("projection_norm: qkv is {}, must be [rows, {} + 2 * {}], by the weights of q and k",
                    to_string(x.shape()), of_q, of_k));
  const int64_t rows = x.size(0), columns = x.size(1);
  return normed(qkv, {{rows, columns, 0, 1, of_q}, q, like_f32(x, {rows})},
                {{rows, columns, of_q, 1, of_k}, k, like_f32(x, {rows})}, eps, {});
}

}  // namespace sherd::nn
