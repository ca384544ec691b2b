#include <sherd/kernels/optimizer/optimizer.h>

#include <fmt/format.h>

#include <cmath>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/detail/check_forms.h>

namespace sherd {
namespace {

double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, base *= base)
    if (n % 2 == 1) result *= base;
  return result;
}

}  // namespace

AdamWBias adamw_bias(double lr, double beta1, double beta2, int64_t step) {
  return {static_cast<float>(lr / (1 - power(beta1, step))),
          static_cast<float>(std::sqrt(1 - power(beta2, step)))};
}

// Weights and two states are read and written, gradients read, copies written.
Work work_of(const Device&, const AdamWArgs& a) {
  const int64_t each = 2 * bytes_of(a.forms.master) + 4 * size_of(a.forms.state) + size_of(a.forms.gradient);
  int64_t bytes = 0;
  for (const AdamWSegment& s : a.segments)
    bytes += s.count * (each + (s.copy != nullptr ? size_of(a.copy_dtype) : 0));
  return {.bytes = bytes};
}

// Averages are read and written, weights read.
Work work_of(const Device&, const AverageArgs& a) {
  int64_t elements = 0;
  for (const AverageSegment& s : a.segments) elements += s.count;
  return {.bytes = elements * (2 * size_of(a.forms.state) + bytes_of(a.forms.master))};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

void check_rates(double lr, double beta1, double beta2, double eps) {
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
          fmt::format("adamw: beta1 {} and beta2 {} must lie in [0, 1)", beta1, beta2));
  require(lr >= 0 && std::isfinite(lr) && eps >= 0 && std::isfinite(eps),
          fmt::format("adamw: lr {} and eps {} must be finite and not negative", lr, eps));
}

}  // namespace

void adamw(Stream& s, const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& g,
           const AdamWStep& step, const Tensor& copy) {
  Check check("adamw");
  check.dtype("w", w, DType::f32)
      .dtype("m", m, DType::f32)
      .dtype("v", v, DType::f32)
      .dtype("g", g, DType::f32);
  check.count("m", m, w.numel()).count("v", v, w.numel()).count("g", g, w.numel());
  if (copy.defined())
    check.dtype("copy", copy, {DType::f32, DType::bf16, DType::f16}).count("copy", copy, w.numel());
  check.done();
  require(step.step >= 1, fmt::format("adamw: step {}; steps are counted from 1", step.step));
  check_rates(step.lr, step.beta1, step.beta2, step.eps);
  AdamWArgs a{.lr = step.lr, .beta1 = step.beta1, .beta2 = step.beta2, .eps = step.eps};
  a.segments.push_back({w.data<float>(), m.data<float>(), v.data<float>(), g.data<float>(),
                        copy.defined() ? copy.raw() : nullptr, w.numel(), step.weight_decay});
  if (copy.defined()) a.copy_dtype = copy.dtype();
  a.bias = adamw_bias(step.lr, step.beta1, step.beta2, step.step);
  queue(s, {"adamw", WorkKind::optimizer}, kernels<OptimizerKernels>(s).adamw, a);
}

void adamw_count(Stream& s, const Tensor& steps, const Tensor& biases, const AdamWRates& rates,
                 const Tensor& skip) {
  Check check("adamw_count");
  check.dtype("steps", steps, DType::f32);
  if (biases.defined()) check.dtype("biases", biases, DType::f32);
  if (steps.defined() && biases.defined()) check.shape("biases", biases, {steps.numel(), 2});
  check_skip(check, skip);
  check.done();
  check_rates(rates.lr, rates.beta1, rates.beta2, rates.eps);
  queue(s, {"adamw_count", WorkKind::optimizer}, kernels<OptimizerKernels>(s).adamw_count,
        AdamWCountArgs{.count = steps.numel(),
                       .steps = steps.data<float>(),
                       .biases = biases.defined() ? static_cast<AdamWBias*>(biases.raw()) : nullptr,
                       .lr = rates.lr,
                       .beta1 = rates.beta1,
                       .beta2 = rates.beta2,
                       .skip = pointer<int64_t>(skip)});
}

void adamw(Stream& s, std::span<const AdamWSegment> segments, const AdamWRates& rates, const Tensor& biases,
           DType copy_dtype, const Tensor& skip, const Tensor& factor, const RestForms& forms) {
  Check check("adamw");
  check.dims("biases", biases, 2).dtype("biases", biases, DType::f32);
  check.that(biases.size(1) == 2,
             fmt::format("biases is {}, must be [parameters, 2]", to_string(biases.shape())));
  check.that(copy_dtype == DType::f32 || copy_dtype == DType::bf16 || copy_dtype == DType::f16,
             fmt::format("copies are {}, must be f32 or bf16 or f16", name_of(copy_dtype)));
  check_skip(check, skip);
  if (factor.defined()) check.dtype("factor", factor, DType::f32).count("factor", factor, 1);
  check_counts(check, segments);
  check_dtypes(check, forms);
  for (size_t i = 0; i < segments.size(); ++i) {
    const AdamWSegment& a = segments[i];
    if (a.count <= 0) continue;
    check.that(a.w && a.m && a.v && a.g, fmt::format("segment {}: w, m, v or g is null", i));
    check_forms(check, i, forms, a.low, a.noise);
    check.that(forms.master == Master::f32 || a.copy == nullptr,
               fmt::format("segment {}: a copy beside weights in form {}", i, name_of(forms.master)));
    check.that(a.bias >= 0 && a.bias < biases.size(0),
               fmt::format("segment {}: bias {} of {}", i, a.bias, biases.size(0)));
  }
  check.done();
  check_rates(rates.lr, rates.beta1, rates.beta2, rates.eps);
  queue(s, {"adamw", WorkKind::optimizer}, kernels<OptimizerKernels>(s).adamw,
        AdamWArgs{.segments = {segments.begin(), segments.end()},
                  .lr = rates.lr,
                  .beta1 = rates.beta1,
                  .beta2 = rates.beta2,
                  .eps = rates.eps,
                  .copy_dtype = copy_dtype,
                  .biases = static_cast<const AdamWBias*>(biases.raw()),
                  .bias = {},
                  .skip = pointer<int64_t>(skip),
                  .factor = pointer<float>(factor),
                  .forms = forms});
}

void average(Stream& s, std::span<const AverageSegment> segments, double decay, const Tensor& skip,
             const RestForms& forms) {
  Check check("average");
  check_skip(check, skip);
  check_counts(check, segments);
  check_dtypes(check, forms);
  // The pass rounds no weights.
  const RestForms drawn{forms.master == Master::split ? Master::split : Master::f32, forms.state};
  for (size_t i = 0; i < segments.size(); ++i) {
    const AverageSegment& a = segments[i];
    if (a.count <= 0) continue;
    check.that(a.average && a.w, fmt::format("segment {}: average or w is null", i));
    check_forms(check, i, drawn, a.low, a.noise);
  }
  check.done();
  require(decay >= 0 && decay < 1, fmt::format("average: decay {} must lie in [0, 1)", decay));
  queue(s, {"average", WorkKind::optimizer}, kernels<OptimizerKernels>(s).average,
        AverageArgs{.segments = {segments.begin(), segments.end()},
                    .rate = static_cast<float>(1 - decay),
                    .skip = pointer<int64_t>(skip),
                    .forms = forms});
}

}  // namespace sherd::ops
