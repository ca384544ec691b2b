#include <sherd/nn/matmul.h>

#include <fmt/format.h>

#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/reduced.h>
#include <sherd/nn/kernels/strided/view.h>

namespace sherd::nn {
namespace {

Shape leading(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }
Shape joined(Shape batch, int64_t rows, int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

/// The matrix of a tensor of `shape` for each matrix of the broadcast `batch`.
std::vector<int64_t> matrices_of(const Shape& shape, const Shape& batch) {
  const Shape own = leading(shape);
  std::vector<int64_t> all(static_cast<size_t>(numel_of(batch)));
  for (size_t i = 0; i < all.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), stride = 1;
    for (size_t d = batch.size(), o = own.size(); d-- > 0 && o-- > 0;) {
      all[i] += own[o] == 1 ? 0 : rest % batch[d] * stride;
      stride *= own[o];
      rest /= batch[d];
    }
  }
  return all;
}

Tensor matrix(const Tensor& t, int64_t i) {
  const int64_t rows = t.size(t.dim() - 2), cols = t.size(t.dim() - 1);
  return t.flat(i * rows * cols, (i + 1) * rows * cols).view({rows, cols});
}

/// c[i] = op(a[of_a[i]]) op(b[of_b[i]]) for each matrix of c.
void multiply_all(Stream& s, const Tensor& c, const Tensor& a, const std::vector<int64_t>& of_a, bool trans_a,
                  const Tensor& b, const std::vector<int64_t>& of_b, bool trans_b) {
  if (c.numel() == 0) return;
  for (size_t i = 0; i < of_a.size(); ++i)
    ops::gemm(s, matrix(c, static_cast<int64_t>(i)), matrix(a, of_a[i]), trans_a, matrix(b, of_b[i]),
              trans_b);
}

/// Shapes of a product and what its backward saves.
struct Product {
  Tensor a, b;
  bool trans_a, trans_b;
  Shape batch{}, shape{};
  std::vector<int64_t> of_a{}, of_b{}, each{};

  Product(Tensor left, Tensor right, const MatmulOptions& o)
      : a(std::move(left)), b(std::move(right)), trans_a(o.transpose_a), trans_b(o.transpose_b) {
    if (a.dim() < 2 || b.dim() < 2)
      throw ShapeMismatch(fmt::format("matmul: a is {}, b is {}; both need two dimensions or more",
                                      to_string(a.shape()), to_string(b.shape())));
    if (b.dim() == 2 && !trans_a)  // all rows of a at once
      a = a.view({a.size(a.dim() - 1) == 0 ? 0 : a.numel() / a.size(a.dim() - 1), a.size(a.dim() - 1)});
    batch = ops::broadcast_shape(leading(a.shape()), leading(b.shape()));
    shape = joined(batch, a.size(a.dim() - (trans_a ? 1 : 2)), b.size(b.dim() - (trans_b ? 2 : 1)));
    of_a = matrices_of(a.shape(), batch);
    of_b = matrices_of(b.shape(), batch);
    each = matrices_of(shape, batch);
  }

  Tensor forward(Stream& s) const {
    const Tensor c = detail::like(a, shape);
    multiply_all(s, c, a, of_a, trans_a, b, of_b, trans_b);
    return c;
  }
  /// Returns the gradient of a from dc: op(b) dc^T where a is transposed, else dc op(b)^T.
  Gradient of_left(Stream& s, const Tensor& dc) const {
    const Tensor da = detail::like(a, joined(batch, a.size(a.dim() - 2), a.size(a.dim() - 1)));
    if (trans_a)
      multiply_all(s, da, b, of_b, trans_b, dc, each, true);
    else
      multiply_all(s, da, dc, each, false, b, of_b, !trans_b);
    return detail::sum_to(s, da, a.shape(), a.device(), da.shape(), a.dtype());
  }
  Gradient of_right(Stream& s, const Tensor& dc) const {
    const Tensor db = detail::like(b, joined(batch, b.size(b.dim() - 2), b.size(b.dim() - 1)));
    if (trans_b)
      multiply_all(s, db, dc, each, true, a, of_a, trans_a);
    else
      multiply_all(s, db, a, of_a, !trans_a, dc, each, false);
    return detail::sum_to(s, db, b.shape(), b.device(), db.shape(), b.dtype());
  }
};

}  // namespace

Var matmul(const Var& a, const Var& b, const MatmulOptions& options) {
  const Product product(a.value(), b.value(), options);
  // A product of all rows at once has the leading dimensions of a.
  Shape shape = product.shape;
  if (product.a.dim() != a.value().dim())
    shape = joined(leading(a.shape()), a.size(a.value().dim() - 2), product.shape.back());
  return function(
      {a, b}, [&](Stream& s) { return product.forward(s).view(shape); },
      [product, of = a.shape()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dc =
            call.output().tensor(product.a.device(), product.shape, product.a.dtype()).view(product.shape);
        std::vector<Gradient> gradients(2);
        if (call.wants(0)) gradients[0] = product.of_left(s, dc).tensor().view(of);
        if (call.wants(1)) gradients[1] = product.of_right(s, dc);
        return gradients;
      });
}

}  // namespace sherd::nn
