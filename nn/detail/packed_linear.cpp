#include <sherd/nn/detail/packed_linear.h>

#include <fmt/format.h>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {
namespace {

struct Packed {
  std::vector<Parameter> weights, biases;
  bool transposed;  // [out, in]

  Packed(const std::vector<Parameter>& w, const std::vector<Parameter>& b, WeightLayout layout)
      : weights(w), biases(b), transposed(layout == WeightLayout::out_in) {}
  Packed(const Affine& one, WeightLayout layout)
      : Packed({one.weight}, one.bias.defined() ? std::vector{one.bias} : std::vector<Parameter>{}, layout) {}

  std::vector<Parameter> all() const {
    std::vector<Parameter> both = weights;
    both.insert(both.end(), biases.begin(), biases.end());
    return both;
  }
  /// Returns whether forward and the input's gradient are one product each. Sizes alone decide, because
  /// adjacency in memory depends on the layout, and layouts have equal bits. The copy that joined() may make
  /// is then at most as large as x.
  bool one_product(const Tensor& x) const { return weights.size() == 1 || width() <= x.size(0); }

  /// Returns the weights side by side, [sum of outs, in] or [in, sum of outs]: a view of adjacent ones, else a copy.
  Tensor joined(Stream& s) const {
    const Tensor first = weights[0].data();
    if (weights.size() == 1) return first;
    const int64_t in = first.size(transposed ? 1 : 0);
    Tensor view = first;
    for (size_t i = 1; i < weights.size() && view.defined(); ++i)
      view = transposed ? view.followed_by(weights[i].data()) : Tensor();
    if (view.defined()) return view.view({width(), in});
    const Tensor copy = like(first, transposed ? Shape{width(), in} : Shape{in, width()});
    for_each([&](size_t i, int64_t at) {
      if (transposed)
        ops::copy(s, copy.rows(at, at + out(i)), weights[i].data());
      else
        ops::strided_copy(s, copy.flat(at, copy.numel()), width(), weights[i].data(), out(i), in, out(i));
    });
    return copy;
  }

  /// Returns the biases one after another, or an undefined tensor.
  Tensor bias(Stream& s) const {
    if (biases.size() < 2) return biases.empty() ? Tensor() : biases[0].data();
    const Tensor all = like(biases[0].data(), {width()});
    for_each([&](size_t i, int64_t at) { ops::copy(s, all.flat(at, at + out(i)), biases[i].data()); });
    return all;
  }

  int64_t out(size_t i) const { return weights[i].shape()[transposed ? 0 : 1]; }
  int64_t width() const {
    int64_t sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += out(i);
    return sum;
  }
  // f(i, first column) for each weight.
  template <class F>
  void for_each(F f) const {
    int64_t at = 0;
    for (size_t i = 0; i < weights.size(); at += out(i++)) f(i, at);
  }

  void check(const Tensor& x) const {
    if (weights.empty() || (!biases.empty() && biases.size() != weights.size()))
      throw InvalidArgument(
          fmt::format("packed_linear: {} weights and {} biases", weights.size(), biases.size()));
    for (size_t i = 0; i < weights.size(); ++i) {
      const Shape& w = weights[i].shape();
      if (x.dim() != 2 || w.size() != 2 || w[transposed ? 1 : 0] != x.size(1) ||
          (!biases.empty() && biases[i].shape() != Shape{out(i)}))
        throw ShapeMismatch(fmt::format("packed_linear: x is {}, '{}' is {}{}", to_string(x.shape()),
                                        weights[i].name(), to_string(w),
                                        biases.empty() ? "" : ", its bias " + to_string(biases[i].shape())));
    }
  }

  Tensor forward(Stream& s, const Tensor& x, const Tensor& residual = {}) const {
    const Tensor y = like(x, {x.size(0), width()});
    if (residual.defined()) {  // of one weight
      ops::gemm_add(s, y, x, false, weights[0].data(), transposed, residual, bias(s));
      return y;
    }
    const Tensor added = bias(s);
    if (one_product(x)) {
      added.defined() ? ops::gemm_bias(s, y, x, false, joined(s), transposed, added)
                      : ops::gemm(s, y, x, false, joined(s), transposed);
      return y;
    }
    for_each([&](size_t i, int64_t at) {
      ops::gemm_columns(s, {y, at, out(i)}, x, false, weights[i].data(), transposed);
    });
    if (added.defined()) ops::add_bias(s, y, added);
    return y;
  }

  void weight_backward(Stream& s, const Tensor& dy, const Tensor& x) const {
    for_each([&](size_t i, int64_t at) {
      if (weights[i].frozen()) return;
      const GradTarget dw = weights[i].grad_for_overwrite();
      const ops::Columns d{dy, at, out(i)};
      transposed ? ops::gemm_columns(s, dw.grad, d, true, x, false, dw.beta)
                 : ops::gemm_columns(s, dw.grad, x, true, d, false, dw.beta);
    });
    bool trains = false;
    for (const Parameter& b : biases) trains = trains || !b.frozen();
    if (!trains) return;
    const Tensor sums = like_wide(dy, {dy.size(1)});
    ops::fill(s, sums, 0);
    ops::bias_backward(s, sums, dy);
    for_each([&](size_t i, int64_t at) {
      if (!biases[i].frozen()) ops::scaled_add(s, biases[i].grad(), 1, sums.flat(at, at + out(i)));
    });
  }

  Tensor input_backward(Stream& s, const Tensor& dy, const Tensor& x) const {
    const Tensor dx = like(x);
    if (one_product(x)) {
      ops::gemm(s, dx, dy, false, joined(s), !transposed);
      return dx;
    }
    for_each([&](size_t i, int64_t at) {
      ops::gemm_columns(s, dx, {dy, at, out(i)}, false, weights[i].data(), !transposed, i == 0 ? 0 : 1);
    });
    return dx;
  }
};

/// Backward of a function of x and, where it has one, of a residual that it adds.
std::vector<Gradient> with_residual(const BackwardCall& call, Gradient of_x) {
  std::vector<Gradient> gradients{std::move(of_x)};
  if (call.inputs() == 2) gradients.push_back(call.output());
  return gradients;
}

Var packed_function(const Packed& packed, const Var& x, const Var& residual, const char* name) {
  const Tensor in = x.value();
  std::vector<Var> inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  return function(
      inputs,
      [&](Stream& s) {
        packed.check(in);
        return packed.forward(s, in, residual.defined() ? residual.value() : Tensor());
      },
      [packed, in](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), {in.size(0), packed.width()}, in.dtype());
        packed.weight_backward(s, dy, in);
        return with_residual(call, call.wants(0) ? Gradient(packed.input_backward(s, dy, in)) : Gradient());
      },
      packed.all(), name);
}

}  // namespace

Var packed_linear(const Var& x, const std::vector<Parameter>& weights, const std::vector<Parameter>& biases,
                  WeightLayout layout) {
  return packed_function({weights, biases, layout}, x, {}, "packed_linear");
}

Var add_affine(const Var& residual, const Var& x, const Affine& w, WeightLayout layout, const char* name) {
  return packed_function({w, layout}, x, residual, name);
}

Var gelu_mlp(const Var& residual, const Var& x, const Affine& up, const Affine& down, WeightLayout layout,
             const char* name) {
  const Packed first(up, layout), second(down, layout);
  const Tensor in = x.value();
  const Tensor before = like(in, {in.size(0), first.width()}), hidden = like(before);
  std::vector<Var> inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  std::vector<Parameter> parameters = first.all();
  for (const Parameter& p : second.all()) parameters.push_back(p);
  return function(
      inputs,
      [&](Stream& s) {
        first.check(in);
        second.check(hidden);
        ops::gemm_gelu(s, hidden, before, in, false, up.weight.data(), first.transposed, first.bias(s));
        return second.forward(s, hidden, residual.defined() ? residual.value() : Tensor());
      },
      [in, before, hidden, first, second](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), {in.size(0), second.width()}, in.dtype());
        second.weight_backward(s, dy, hidden);
        const Tensor dbefore = like(before);
        ops::gemm_gelu_backward(s, dbefore, dy, false, second.weights[0].data(), !second.transposed, before);
        first.weight_backward(s, dbefore, in);
        return with_residual(call,
                             call.wants(0) ? Gradient(first.input_backward(s, dbefore, in)) : Gradient());
      },
      parameters, name);
}

}  // namespace sherd::nn::detail
