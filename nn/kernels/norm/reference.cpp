#include <sherd/nn/kernels/norm/norm.h>

#include <cmath>
#include <vector>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void accumulate_all(Ref to, const std::vector<double>& sums) {
  for (size_t c = 0; c < sums.size(); ++c) accumulate(to, static_cast<int64_t>(c), sums[c]);
}

/// to = value, rounded, plus the element of `addend`, which may be to's memory.
void put_sum(Ref to, int64_t i, double value, Ref addend) {
  const double more = addend.data ? get(addend, i) : 0;
  put(to, i, value);
  if (addend.data) put(to, i, more + get(to, i));
}

/// Sums x^2, or dy * w * x, over the row's columns here.
double own_sum(const RmsNormArgs& a, int64_t r, bool backward) {
  double sum = 0;
  for (int64_t c = 0; c < a.cols; ++c) {
    const double x = get(a.x, r * a.cols + c);
    sum += (backward ? get(a.dy, r * a.cols + c) * get(a.w, c) : x) * x;
  }
  return sum;
}

double whole_sum(const RmsNormArgs& a, int64_t r, bool backward) {
  return a.sums.data ? get(a.sums, r) : own_sum(a, r, backward);
}

void rms_norm_sums(ExecutionContext&, const RmsNormArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) put(a.sums, r, own_sum(a, r, a.dy.data != nullptr));
}

void rms_norm_forward(ExecutionContext&, const RmsNormArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const double rstd = 1 / std::sqrt(whole_sum(a, r, false) / static_cast<double>(a.columns()) + a.eps);
    for (int64_t c = 0; c < a.cols; ++c)
      put(a.y, r * a.cols + c, get(a.x, r * a.cols + c) * rstd * get(a.w, c));
    put(a.rstd, r, rstd);
  }
}

void rms_norm_backward(ExecutionContext&, const RmsNormArgs& a) {
  std::vector<double> dw(static_cast<size_t>(a.cols), 0.0);
  for (int64_t r = 0; r < a.rows; ++r) {
    const double rstd = get(a.rstd, r);
    for (int64_t c = 0; c < a.cols; ++c)
      dw[static_cast<size_t>(c)] += get(a.dy, r * a.cols + c) * get(a.x, r * a.cols + c) * rstd;
    // Dot product of the normalised row and its gradient.
    const double dot = whole_sum(a, r, true) * rstd / static_cast<double>(a.columns());
    for (int64_t c = 0; c < a.cols; ++c) {
      const int64_t i = r * a.cols + c;
      put_sum(a.dx, i, rstd * (get(a.dy, i) * get(a.w, c) - get(a.x, i) * rstd * dot), a.addend);
    }
  }
  accumulate_all(a.dw, dw);
}

void layer_norm_forward(ExecutionContext&, const LayerNormArgs& a) {
  const auto n = static_cast<double>(a.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t row = r * a.cols;
    double mean = 0, squares = 0;
    for (int64_t c = 0; c < a.cols; ++c) mean += get(a.x, row + c) / n;
    for (int64_t c = 0; c < a.cols; ++c) {
      const double x = get(a.x, row + c) - mean;
      squares += x * x;
    }
    const double rstd = 1 / std::sqrt(squares / n + a.eps);
    for (int64_t c = 0; c < a.cols; ++c) {
      const double bias = a.bias.data ? get(a.bias, c) : 0;
      put(a.y, row + c, (get(a.x, row + c) - mean) * rstd * get(a.w, c) + bias);
    }
    put(a.mean, r, mean);
    put(a.rstd, r, rstd);
  }
}

void layer_norm_backward(ExecutionContext&, const LayerNormArgs& a) {
  const auto n = static_cast<double>(a.cols);
  std::vector<double> dw(static_cast<size_t>(a.cols), 0.0);
  for (int64_t r = 0; r < a.rows; ++r) {
    const double mean = get(a.mean, r), rstd = get(a.rstd, r);
    const auto xhat = [&](int64_t c) { return (get(a.x, r * a.cols + c) - mean) * rstd; };
    double sum = 0, dot = 0;  // of the normalised row's gradient, and of it with that row
    for (int64_t c = 0; c < a.cols; ++c) {
      const double dy = get(a.dy, r * a.cols + c), g = dy * get(a.w, c);
      dw[static_cast<size_t>(c)] += dy * xhat(c);
      sum += g;
      dot += g * xhat(c);
    }
    for (int64_t c = 0; c < a.cols; ++c) {
      const double g = get(a.dy, r * a.cols + c) * get(a.w, c);
      put_sum(a.dx, r * a.cols + c, rstd * (g - sum / n - xhat(c) * dot / n), a.addend);
    }
  }
  accumulate_all(a.dw, dw);
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const NormKernels* NormKernels::reference() {
  static constexpr NormKernels table{
      .rms_norm_forward = reference::rms_norm_forward,
      .rms_norm_backward = reference::rms_norm_backward,
      .rms_norm_sums = reference::rms_norm_sums,
      .layer_norm_forward = reference::layer_norm_forward,
      .layer_norm_backward = reference::layer_norm_backward,
  };
  return &table;
}

}  // namespace sherd
