#include <sherd/nn/shapes.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/reduced.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/kernels/embedding/embedding.h>
#include <sherd/nn/kernels/strided/strided.h>

namespace sherd::nn {
namespace {

using detail::like;

/// A dense copy of a view.
Tensor copied(Stream& s, const ops::StridedView& v) {
  const Tensor y = like(v.tensor, v.sizes);
  ops::map(s, MapFunction::copy, ops::dense(y), {v});
  return y;
}

int64_t dim_of(const char* function, int64_t dim, const Shape& shape) {
  return detail::dims_of(function, shape, {dim})[0];
}

/// Rows indices[i] of x, which has at least one dimension.
Var selected_rows(const Var& x, const Tensor& indices, const char* name) {
  const Tensor in = x.value();
  Shape shape = in.shape();
  shape[0] = indices.numel();
  const Shape table{in.size(0), row_size(in.shape())};
  return function(
      {x},
      [&](Stream& s) {
        const Tensor y = like(in, shape);
        ops::embedding_forward(s, y.view({shape[0], table[1]}), indices.view({1, shape[0]}), in.view(table),
                               {});
        return y;
      },
      [indices, shape, table, device = &in.device(), of = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(*device, shape, dtype).view({shape[0], table[1]});
        const Tensor dx = detail::like_wide(dy, table);
        ops::fill(s, dx, 0);
        ops::embedding_backward(s, dx, {}, dy, indices.view({1, shape[0]}));
        return {detail::as_dtype(s, dx, dtype).view(of)};
      },
      {}, name);
}

}  // namespace

Var reshape(const Var& x, Shape shape) {
  const auto open = std::find(shape.begin(), shape.end(), -1);
  if (open != shape.end()) {
    *open = 1;
    const int64_t others = numel_of(shape);
    *open = others > 0 ? x.numel() / others : 0;
  }
  return view(x, std::move(shape));
}

Var permute(const Var& x, const std::vector<int64_t>& dims) {
  const Tensor in = x.value();
  std::vector<int64_t> order(dims), back(dims.size());
  for (int64_t& d : order) d = d < 0 ? d + in.dim() : d;
  if (detail::dims_of("permute", in.shape(), dims).size() != in.shape().size())
    throw InvalidArgument(fmt::format("permute: {} leaves out a dimension of a value {}; name each once",
                                      dims, to_string(in.shape())));
  for (size_t d = 0; d < order.size(); ++d) back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
  const Shape shape = ops::permuted(ops::dense(in), order).sizes;
  return function(
      {x}, [&](Stream& s) { return copied(s, ops::permuted(ops::dense(in), order)); },
      [back, shape, device = &in.device(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return {call.output()};
        return {copied(s, ops::permuted(ops::dense(call.output().tensor(*device, shape, dtype)), back))};
      });
}

Var transpose(const Var& x, int64_t a, int64_t b) {
  std::vector<int64_t> dims(x.shape().size());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[static_cast<size_t>(dim_of("transpose", a, x.shape()))],
            dims[static_cast<size_t>(dim_of("transpose", b, x.shape()))]);
  return permute(x, dims);
}

Var broadcast_to(const Var& x, const Shape& shape) {
  const Tensor in = x.value();
  return function(
      {x}, [&](Stream& s) { return copied(s, ops::broadcast(ops::dense(in), shape)); },
      [shape, device = &in.device(), of = in.shape(), dtype = in.dtype()](Stream& s, const BackwardCall& call)
          -> std::vector<Gradient> { return {detail::sum_to(s, call.output(), of, *device, shape, dtype)}; });
}

Var slice(const Var& x, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  const Tensor in = x.value();
  const int64_t d = dim_of("slice", dim, in.shape());
  if (begin < 0 || begin > end || end > in.size(d) || step < 1)
    throw InvalidArgument(
        fmt::format("slice: [{}, {}) by {} lies outside of dimension {} of a value {}; bounds are in [0, "
                    "{}], a step is 1 or more",
                    begin, end, step, d, to_string(in.shape()), in.size(d)));
  return function(
      {x}, [&](Stream& s) { return copied(s, ops::sliced(ops::dense(in), d, begin, end, step)); },
      [=, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dx = Tensor::empty(*device, shape, dtype, detail::kActivations);
        const ops::StridedView part = ops::sliced(ops::dense(dx), d, begin, end, step);
        ops::fill(s, dx, 0);
        ops::map(s, MapFunction::copy, part, {call.output().tensor(*device, part.sizes, dtype)});
        return {dx};
      });
}

Var concat(const std::vector<Var>& parts, int64_t dim) {
  if (parts.empty()) throw InvalidArgument("concat: no parts; give at least one");
  const Tensor first = parts[0].value();
  const int64_t d = dim_of("concat", dim, first.shape());
  const auto at = static_cast<size_t>(d);
  std::vector<int64_t> ends;
  Shape shape = first.shape();
  shape[at] = 0;
  for (const Var& part : parts) {
    Shape others = part.shape();
    if (others.size() == shape.size()) others[at] = shape[at];
    if (others != shape || part.dtype() != first.dtype())
      throw ShapeMismatch(
          fmt::format("concat: part {} is {} {}, part 0 is {} {}; they may differ in dimension {} alone",
                      ends.size(), name_of(part.dtype()), to_string(part.shape()), name_of(first.dtype()),
                      to_string(first.shape()), d));
    ends.push_back(shape[at] += part.size(d));
  }
  return function(
      parts,
      [&](Stream& s) {
        const Tensor y = like(first, shape);
        for (size_t i = 0; i < parts.size(); ++i)
          ops::map(s, MapFunction::copy, ops::sliced(ops::dense(y), d, ends[i] - parts[i].size(d), ends[i]),
                   {parts[i].value()});
        return y;
      },
      [ends, d, shape, device = &first.device(), dtype = first.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return std::vector<Gradient>(ends.size(), call.output());
        const Tensor dy = call.output().tensor(*device, shape, dtype);
        std::vector<Gradient> gradients(ends.size());
        for (size_t i = 0; i < ends.size(); ++i)
          if (call.wants(i))
            gradients[i] = copied(s, ops::sliced(ops::dense(dy), d, i == 0 ? 0 : ends[i - 1], ends[i]));
        return gradients;
      });
}

Var stack(const std::vector<Var>& parts, int64_t dim) {
  if (parts.empty()) throw InvalidArgument("stack: no parts; give at least one");
  Shape shape = parts[0].shape();
  shape.push_back(1);
  const int64_t d = dim_of("stack", dim, shape);
  std::vector<Var> with_dim;
  for (const Var& part : parts) {
    shape = part.shape();
    shape.insert(shape.begin() + std::min(d, part.value().dim()), 1);
    with_dim.push_back(view(part, shape));
  }
  return concat(with_dim, d);
}

Var index_select(const Var& x, int64_t dim, const Tensor& indices) {
  const int64_t d = dim_of("index_select", dim, x.shape());
  if (d == 0) return selected_rows(x, indices, "index_select");
  return transpose(selected_rows(transpose(x, 0, d), indices, "index_select"), 0, d);
}

}  // namespace sherd::nn
