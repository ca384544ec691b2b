#include <sherd/nn/grouped_linear.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn {
namespace {

using detail::like;
using Offsets = std::vector<int64_t>;

// Matrix (or vector) e of a stack.
Tensor at(const Tensor& stack, int64_t e) {
  return stack.rows(e, e + 1).view({stack.shape().begin() + 1, stack.shape().end()});
}

void check(const Tensor& x, const Offsets& offsets, const Parameter& w, const Parameter& bias, bool in_out) {
  const Shape& s = w.shape();
  if (s.size() != 3 || x.shape().size() != 2 || x.size(1) != s[in_out ? 1 : 2] ||
      (bias.defined() && bias.shape() != Shape{s[0], s[in_out ? 2 : 1]}))
    throw ShapeMismatch(
        fmt::format("grouped_linear: x is {}, {} is {}{}; wanted are x [n, in], weight [groups, {}] and bias "
                    "[groups, out]",
                    to_string(x.shape()), w.name(), to_string(s),
                    bias.defined() ? fmt::format(", {} is {}", bias.name(), to_string(bias.shape())) : "",
                    in_out ? "in, out" : "out, in"));
  if (static_cast<int64_t>(offsets.size()) != s[0] + 1 || offsets.front() != 0 ||
      offsets.back() != x.size(0) || !std::is_sorted(offsets.begin(), offsets.end()))
    throw ShapeMismatch(
        fmt::format("grouped_linear: offsets [{}] for {} groups of {} rows; wanted are {} numbers from 0 to "
                    "{}, none smaller than "
                    "the one before",
                    fmt::join(offsets, ", "), s[0], x.size(0), s[0] + 1, x.size(0)));
}

// Returns the groups after e, itself included, with as many rows, which a dry device counts together; elsewhere 1.
size_t alike(Stream& s, const Offsets& offsets, size_t e) {
  if (!s.device().dry()) return 1;
  const int64_t rows = offsets[e + 1] - offsets[e];
  size_t count = 1;
  while (e + count + 1 < offsets.size() && offsets[e + count + 1] - offsets[e + count] == rows) ++count;
  return count;
}

// f(e, first row, end) for every group that has rows, `empty`(e) for the others.
template <class F, class Empty>
void for_groups(Stream& s, const Offsets& offsets, F f, Empty empty) {
  for (size_t e = 0; e + 1 < offsets.size();) {
    const auto group = static_cast<int64_t>(e);
    const size_t count = alike(s, offsets, e);
    s.repeat(static_cast<int64_t>(count));
    offsets[e] == offsets[e + 1] ? empty(group) : f(group, offsets[e], offsets[e + 1]);
    e += count;
  }
  s.repeat(1);
}

}  // namespace

Var grouped_linear(const Var& x, Offsets offsets, const Parameter& w, const Parameter& bias, bool in_out) {
  const Tensor in = x.value();
  check(in, offsets, w, bias, in_out);
  const Shape out{in.size(0), w.shape()[in_out ? 2 : 1]};
  const auto forward = [&](Stream& s) {
    Tensor y = like(in, out);
    for_groups(
        s, offsets,
        [&](int64_t e, int64_t begin, int64_t end) {
          const Tensor to = y.rows(begin, end), from = in.rows(begin, end), matrix = at(w.data(), e);
          if (bias.defined()) {
            ops::gemm_bias(s, to, from, false, matrix, !in_out, at(bias.data(), e));
          } else {
            ops::gemm(s, to, from, false, matrix, !in_out);
          }
        },
        [](int64_t) {});
    return y;
  };
  std::vector<Parameter> parameters{w};
  if (bias.defined()) parameters.push_back(bias);
  return function(
      {x}, forward,
      [in, out, offsets, w, bias, in_out](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(in.device(), out, in.dtype());
        const Tensor dx = call.wants(0) ? like(in) : Tensor();
        // Requested also without any row: the gradients of this call are zeros then, not missing.
        const GradTarget dw = w.frozen() ? GradTarget{} : w.grad_for_overwrite();
        const Tensor dbias = bias.defined() && !bias.frozen() ? bias.grad() : Tensor();
        for_groups(
            s, offsets,
            [&](int64_t e, int64_t begin, int64_t end) {
              const Tensor d = dy.rows(begin, end);
              if (dw.grad.defined())
                in_out ? ops::gemm(s, at(dw.grad, e), in.rows(begin, end), true, d, false, 1, dw.beta)
                       : ops::gemm(s, at(dw.grad, e), d, true, in.rows(begin, end), false, 1, dw.beta);
              if (dbias.defined()) ops::bias_backward(s, at(dbias, e), d);
              if (dx.defined()) ops::gemm(s, dx.rows(begin, end), d, false, at(w.data(), e), in_out);
            },
            [&](int64_t e) {
              if (dw.grad.defined() && dw.beta == 0) ops::fill(s, at(dw.grad, e), 0);
            });
        return {dx.defined() ? Gradient(dx) : Gradient()};
      },
      parameters);
}

}  // namespace sherd::nn
