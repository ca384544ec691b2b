#include <sherd/nn/dot_product_attention.h>

#include <fmt/format.h>

#include <cmath>

#include <sherd/nn/activation.h>
#include <sherd/nn/algebra.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/matmul.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn {

Var dot_product_attention(const Var& q, const Var& k, const Var& v, const DotProductAttentionOptions& o) {
  const auto fits = [&](const Var& x) {
    return x.shape().size() == 2 && o.batch > 0 && o.heads > 0 && x.size(0) % o.batch == 0 &&
           x.size(1) % o.heads == 0;
  };
  if (!fits(q) || !fits(k) || !fits(v) || q.size(1) != k.size(1) || k.size(0) != v.size(0))
    throw ShapeMismatch(
        fmt::format("dot_product_attention: q {}, k {}, v {} with {} sequences and {} heads; rows must be "
                    "whole sequences and columns "
                    "whole heads, q and k of one width, k and v of one length",
                    to_string(q.shape()), to_string(k.shape()), to_string(v.shape()), o.batch, o.heads));
  const auto by_head = [&](const Var& x) {  // [batch, heads, rows, dim]
    return permute(view(x, {o.batch, x.size(0) / o.batch, o.heads, x.size(1) / o.heads}), {0, 2, 1, 3});
  };
  const double root = std::sqrt(static_cast<double>(q.size(1) / o.heads));
  Var scores = matmul(by_head(q), by_head(k), {.transpose_b = true}) / root;
  if (o.mask.defined()) scores = scores + o.mask;
  const Var y = permute(matmul(softmax(scores), by_head(v)), {0, 2, 1, 3});
  return view(y, {q.size(0), v.size(1)});
}

}  // namespace sherd::nn
