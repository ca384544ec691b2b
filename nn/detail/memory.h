// Memory of values and gradients.
#pragma once

#include <sherd/fsdp/parameter.h>
#include <sherd/nn/var.h>

namespace sherd::nn::detail {

/// The name under which the allocator counts what functions keep and return.
inline constexpr const char* kActivations = "activations";

/// Uninitialised, of x's device and dtype.
Tensor like(const Tensor& x, Shape shape);
inline Tensor like(const Tensor& x) { return like(x, x.shape()); }
/// The same in f32.
Tensor like_f32(const Tensor& x, Shape shape);
/// In the dtype of what is kept beside x, and of gradients of weights: f32, or f64 beside f64.
Tensor like_wide(const Tensor& x, Shape shape);

/// The target of the gradient of a table, which kernels add to: scratch zeros if frozen; undefined without a
/// table.
Tensor gradient_of(Stream& s, const Parameter& p, const Tensor& beside);

/// Rows from `first` on of x, which may be undefined; no copy.
inline Tensor rows_from(const Tensor& x, int64_t first) {
  return first > 0 && x.defined() ? x.rows(first, x.size(0)) : x;
}

/// The weight that a norm multiplies with: w itself where base is 0, else base + w in f32.
Tensor norm_weight(Stream& s, const Parameter& w, float base);

/// x itself, if it has that dtype, or a copy of another.
Tensor as_dtype(Stream& s, const Tensor& x, DType dtype);

}  // namespace sherd::nn::detail
