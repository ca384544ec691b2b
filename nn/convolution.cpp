#include <sherd/nn/convolution.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/strided/strided.h>
#include <sherd/nn/matmul.h>
#include <sherd/nn/reductions.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn {
namespace {

/// Windows of a padded tensor [n, c, height, width].
struct WindowPlan {
  Pair kernel, out{};
  WindowOptions options;
  Shape shape, padded;

  WindowPlan(const Shape& x, Pair k, const WindowOptions& o) : kernel(k), options(o), shape(x), padded(x) {
    if (x.size() != 4)
      throw ShapeMismatch(
          fmt::format("windows: x is {}, must be [n, channels, height, width]", to_string(x)));
    for (size_t d = 0; d < 2; ++d) {
      if (o.stride[d] < 1 || o.padding[d] < 0 || k[d] < 1)
        throw InvalidArgument(
            fmt::format("windows: kernel {}, stride {}, padding {}; kernels and strides are 1 or more, "
                        "paddings 0 or more",
                        k, o.stride, o.padding));
      padded[2 + d] += 2 * o.padding[d];
      if (padded[2 + d] < k[d])
        throw ShapeMismatch(
            fmt::format("windows: the kernel {} is larger than x {} with padding {}; use a smaller kernel or "
                        "more padding",
                        k, to_string(x), o.padding));
      out[d] = (padded[2 + d] - k[d]) / o.stride[d] + 1;
    }
  }

  /// The part of a padded tensor that x is.
  ops::StridedView inside(const Tensor& t) const {
    ops::StridedView v = ops::dense(t);
    for (int64_t d = 0; d < 2; ++d) {
      const int64_t begin = options.padding[static_cast<size_t>(d)];
      v = ops::sliced(v, 2 + d, begin, begin + shape[static_cast<size_t>(2 + d)]);
    }
    return v;
  }
  /// [n, out height, out width, c, kernel height, kernel width] of a padded tensor.
  ops::StridedView all(const Tensor& t) const {
    const ops::StridedView v = ops::dense(t);
    const Shape& s = v.strides;
    return {t,
            0,
            {shape[0], out[0], out[1], shape[1], kernel[0], kernel[1]},
            {s[0], s[2] * options.stride[0], s[3] * options.stride[1], s[1], s[2], s[3]}};
  }
  bool pads() const { return padded != shape; }
};

Tensor copy_of_windows(Stream& s, const WindowPlan& p, const Tensor& x) {
  Tensor from = x;
  if (p.pads()) {
    from = detail::like(x, p.padded);
    ops::fill(s, from, 0);
    ops::map(s, MapFunction::copy, p.inside(from), {x});
  }
  const ops::StridedView v = p.all(from);
  const Tensor y = detail::like(x, v.sizes);
  ops::map(s, MapFunction::copy, ops::dense(y), {v});
  return y;
}

/// Windows overlap: their elements are added one place of the kernel after another.
Tensor sum_of_windows(Stream& s, const WindowPlan& p, const Tensor& dy) {
  const Tensor sum = detail::like(dy, p.padded);
  ops::fill(s, sum, 0);
  const auto place = [](const ops::StridedView& v, int64_t i, int64_t j) {
    return ops::sliced(ops::sliced(v, 4, i, i + 1), 5, j, j + 1);
  };
  for (int64_t i = 0; i < p.kernel[0]; ++i)
    for (int64_t j = 0; j < p.kernel[1]; ++j) {
      const ops::StridedView to = place(p.all(sum), i, j);
      ops::map(s, MapFunction::add, to, {to, place(ops::dense(dy), i, j)});
    }
  if (!p.pads()) return sum;
  const Tensor dx = detail::like(dy, p.shape);
  ops::map(s, MapFunction::copy, ops::dense(dx), {p.inside(sum)});
  return dx;
}

}  // namespace

Var windows(const Var& x, Pair kernel, const WindowOptions& options) {
  const Tensor in = x.value();
  const WindowPlan plan(in.shape(), kernel, options);
  return function(
      {x}, [&](Stream& s) { return copy_of_windows(s, plan, in); },
      [plan, device = &in.device(), dtype = in.dtype()](Stream& s,
                                                        const BackwardCall& call) -> std::vector<Gradient> {
        const Shape shape{plan.shape[0], plan.out[0],    plan.out[1],
                          plan.shape[1], plan.kernel[0], plan.kernel[1]};
        return {sum_of_windows(s, plan, call.output().tensor(*device, shape, dtype))};
      });
}

Var conv2d(const Var& x, const Var& w, const Var& bias, const WindowOptions& options) {
  if (w.shape().size() != 4 || x.shape().size() != 4 || w.size(1) != x.size(1))
    throw ShapeMismatch(fmt::format(
        "conv2d: x is {}, w is {}; must be [n, channels, height, width] and [out, channels, height, width]",
        to_string(x.shape()), to_string(w.shape())));
  const Var all = windows(x, {w.size(2), w.size(3)}, options);
  const int64_t out = w.size(0), width = numel_of(w.shape()) / std::max<int64_t>(1, out);
  const Var y = matmul(reshape(all, {all.size(0), all.size(1), all.size(2), width}), reshape(w, {out, width}),
                       {.transpose_b = true});
  return permute(bias.defined() ? y + bias : y, {0, 3, 1, 2});
}

Var conv1d(const Var& x, const Var& w, const Var& bias, int64_t stride, int64_t padding) {
  if (x.shape().size() != 3 || w.shape().size() != 3)
    throw ShapeMismatch(
        fmt::format("conv1d: x is {}, w is {}; must be [n, channels, length] and [out, channels, length]",
                    to_string(x.shape()), to_string(w.shape())));
  const Var y = conv2d(reshape(x, {x.size(0), x.size(1), 1, x.size(2)}),
                       reshape(w, {w.size(0), w.size(1), 1, w.size(2)}), bias,
                       {.stride = {1, stride}, .padding = {0, padding}});
  return reshape(y, {y.size(0), y.size(1), y.size(3)});
}

Var average_pool2d(const Var& x, Pair kernel, const WindowOptions& options) {
  return permute(mean(windows(x, kernel, options), {4, 5}), {0, 3, 1, 2});
}

Var max_pool2d(const Var& x, Pair kernel, Pair stride) {
  return permute(max(windows(x, kernel, {.stride = stride}), {4, 5}), {0, 3, 1, 2});
}

}  // namespace sherd::nn
