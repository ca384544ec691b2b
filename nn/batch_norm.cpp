#include <sherd/nn/batch_norm.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/collectives.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/kernels/strided/strided.h>
#include <sherd/nn/reductions.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn {
namespace {

/// [channels] as a value that repeats along all dimensions of x but the second.
Var by_channel(const Var& v, const Var& x) {
  Shape shape(x.shape().size(), 1);
  shape.at(1) = x.size(1);
  return reshape(v, std::move(shape));
}

Var normalised(const Var& x, const Var& mean, const Var& variance, double eps) {
  return (x - mean) / sqrt(variance + eps);
}

/// running += momentum * (factor * batch - running), in f32.
void follow(Stream& s, const Tensor& running, const Tensor& batch, double factor, double momentum) {
  const Tensor b = detail::as_dtype(s, batch, DType::f32).view(running.shape());
  const Tensor part = detail::like(running);
  ops::map(s, MapFunction::multiply, ops::dense(running), {running, 1 - momentum});
  ops::map(s, MapFunction::multiply, ops::dense(part), {b, factor * momentum});
  ops::map(s, MapFunction::add, ops::dense(running), {running, part});
}

struct Statistics {
  Var mean, variance;  // biased; of size 1 in `dims`
  double count;        // elements of a channel
};

/// Those of x over `dims` and the ranks. The host waits for the number of elements of all ranks.
Statistics statistics(const Var& x, const std::vector<int64_t>& dims,
                      const std::shared_ptr<Communicator>& ranks) {
  int64_t n = x.numel() / std::max<int64_t>(x.size(1), 1);
  if (ranks == nullptr || ranks->size() == 1)
    return {mean(x, dims, true), variance(x, dims, true), static_cast<double>(n)};
  Stream& s = x.stream();
  const Tensor count = Tensor::empty(x.device(), {1}, DType::i64, detail::kActivations);
  ops::copy_from_host(s, count, &n, sizeof n);
  ranks->all_reduce(s, count);
  ops::copy_to_host(s, &n, count);
  const double each = 1 / static_cast<double>(n);
  // Sums of 16-bit values are added up, and sent, in f32.
  const Var wide = x.dtype() == DType::bf16 ? cast(x, DType::f32) : x;
  const Var m = all_reduce(ranks, sum(wide, dims, true)) * each;
  const Var v = all_reduce(ranks, sum(power(wide - m, 2), dims, true)) * each;
  return {cast(m, x.dtype()), cast(v, x.dtype()), static_cast<double>(n)};
}

void check_running(const Var& x, const Var& w, const Var& bias, const BatchNormOptions& o) {
  for (const auto& [name, v] : {std::pair("w", &w), std::pair("bias", &bias)})
    if (x.shape().size() >= 2 && v->numel() != x.size(1))
      throw ShapeMismatch(fmt::format("batch_norm: {} is {}, must be [{}], one for each channel", name,
                                      to_string(v->shape()), x.size(1)));
  const bool both = o.running_mean.defined() && o.running_variance.defined();
  if (x.shape().size() < 2)
    throw ShapeMismatch("batch_norm: x is " + to_string(x.shape()) + ", must be [n, channels, ...]");
  if ((o.running_mean.defined() != o.running_variance.defined()) || (!o.training && !both))
    throw InvalidArgument(
        "batch_norm: running statistics are missing; give running_mean and running_variance, or train "
        "without both");
  for (const Tensor& t : {o.running_mean, o.running_variance})
    if (t.defined() && (t.dtype() != DType::f32 || t.shape() != Shape{x.size(1)}))
      throw InvalidArgument(fmt::format("batch_norm: running statistics are {} {}; must be f32 [{}]",
                                        name_of(t.dtype()), to_string(t.shape()), x.size(1)));
}

}  // namespace

Var batch_norm(const Var& x, const Var& w, const Var& bias, const BatchNormOptions& o) {
  check_running(x, w, bias, o);
  if (!o.training) {
    const auto stored = [&](const Tensor& t) {
      return by_channel(detail::as_dtype(x.stream(), t, x.dtype()), x);
    };
    return normalised(x, stored(o.running_mean), stored(o.running_variance), o.eps) * by_channel(w, x) +
           by_channel(bias, x);
  }
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < x.value().dim(); ++d) dims.push_back(d);
  const auto [m, v, n] = statistics(x, dims, o.ranks);
  if (o.running_mean.defined() && x.tape() != nullptr && x.tape()->training() && !x.tape()->recomputing() &&
      n > 0) {
    follow(x.stream(), o.running_mean, m.value(), 1, o.momentum);
    follow(x.stream(), o.running_variance, v.value(), n > 1 ? n / (n - 1) : 1, o.momentum);
  }
  return normalised(x, m, v, o.eps) * by_channel(w, x) + by_channel(bias, x);
}

Var group_norm(const Var& x, int64_t groups, const Var& w, const Var& bias, double eps) {
  if (x.shape().size() < 2 || groups < 1 || x.size(1) % groups != 0)
    throw InvalidArgument(fmt::format(
        "group_norm: {} groups of x {}; x must be [n, channels, ...] with channels that the groups divide",
        groups, to_string(x.shape())));
  const Var parts = reshape(x, {x.size(0), groups, -1});
  const Var y = normalised(parts, mean(parts, {2}, true), variance(parts, {2}, true), eps);
  return reshape(y, x.shape()) * by_channel(w, x) + by_channel(bias, x);
}

}  // namespace sherd::nn
