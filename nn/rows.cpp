#include <sherd/nn/rows.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {
namespace {

using detail::like;

// The same shape with another number of rows.
Shape with_rows(Shape shape, int64_t count) {
  shape[0] = count;
  return shape;
}

void require_rows(const char* function, const Tensor& x) {
  if (x.dim() == 0) throw ShapeMismatch(fmt::format("{}: a scalar has no rows", function));
}

}  // namespace

Var concat_rows(const std::vector<Var>& parts) {
  if (parts.empty()) throw InvalidArgument("concat_rows: no parts");
  std::vector<int64_t> ends;
  int64_t count = 0;
  const Tensor first = parts[0].value();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& t = parts[i].value();
    require_rows("concat_rows", t);
    if (t.dtype() != first.dtype() || with_rows(t.shape(), 0) != with_rows(first.shape(), 0))
      throw ShapeMismatch(fmt::format(
          "concat_rows: part {} is {} {}, part 0 is {} {}; they may differ in rows alone", i,
          name_of(t.dtype()), to_string(t.shape()), name_of(first.dtype()), to_string(first.shape())));
    ends.push_back(count += t.size(0));
  }
  return function(
      parts,
      [&](Stream& s) {
        Tensor y = like(first, with_rows(first.shape(), count));
        for (size_t i = 0; i < parts.size(); ++i)
          ops::copy(s, y.rows(ends[i] - parts[i].size(0), ends[i]), parts[i].value());
        return y;
      },
      [ends](Stream&, const BackwardCall& call) -> std::vector<Gradient> {
        if (call.output().constant()) return std::vector<Gradient>(ends.size(), call.output());
        std::vector<Gradient> gradients;
        for (size_t i = 0; i < ends.size(); ++i)
          gradients.emplace_back(call.output().tensor().rows(i == 0 ? 0 : ends[i - 1], ends[i]));
        return gradients;
      });
}

Var rows(const Var& x, int64_t begin, int64_t end) {
  const Tensor in = x.value();
  require_rows("rows", in);
  if (begin < 0 || begin > end || end > in.size(0))
    throw InvalidArgument(
        fmt::format("rows: [{}, {}) lies outside of x, which is {}", begin, end, to_string(in.shape())));
  return function(
      {x}, [&](Stream&) { return in.rows(begin, end); },
      [begin, end, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = Tensor::empty(*device, shape, dtype, detail::kActivations);
        ops::fill(s, dx.rows(0, begin), 0);
        ops::fill(s, dx.rows(end, shape[0]), 0);
        ops::copy(s, dx.rows(begin, end),
                  call.output().tensor(*device, with_rows(shape, end - begin), dtype));
        return {dx};
      });
}

std::vector<Var> split_columns(const Var& x, const std::vector<int64_t>& widths) {
  const Tensor in = x.value();
  const int64_t sum = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  if (in.dim() != 2 || sum != in.size(1) ||
      std::any_of(widths.begin(), widths.end(), [](int64_t w) { return w < 0; }))
    throw ShapeMismatch(fmt::format("split_columns: widths {} do not cut the columns of x, which is {}",
                                    widths, to_string(in.shape())));
  return functions(
      {x},
      [&](Stream& s) {
        std::vector<Tensor> parts;
        int64_t at = 0;
        for (const int64_t width : widths) {
          parts.push_back(like(in, {in.size(0), width}));
          if (width > 0 && in.size(0) > 0)
            ops::strided_copy(s, parts.back(), width, in.flat(at, in.numel()), sum, in.size(0), width);
          at += width;
        }
        return parts;
      },
      [widths, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        Tensor dx = Tensor::empty(*device, shape, dtype, detail::kActivations);
        // No copy below writes the columns of an unused part: fill them with zeros.
        for (size_t i = 0; i < widths.size(); ++i)
          if (!call.output(i).defined()) {
            ops::fill(s, dx, 0);
            break;
          }
        int64_t at = 0;
        for (size_t i = 0; i < widths.size(); at += widths[i++]) {
          if (!call.output(i).defined() || widths[i] == 0 || shape[0] == 0) continue;
          const Tensor dy = call.output(i).tensor(*device, {shape[0], widths[i]}, dtype);
          ops::strided_copy(s, dx.flat(at, dx.numel()), shape[1], dy, widths[i], shape[0], widths[i]);
        }
        return {dx};
      });
}

}  // namespace sherd::nn
