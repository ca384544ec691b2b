#include <cmath>
#include <vector>

#include <sherd/kernels/ops/norm.h>

#include "reference.h"

namespace sherd::reference {

void rms_norm_forward(ExecutionContext&, const RmsNormArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < a.cols; ++c) {
      const double x = get(a.x, r * a.cols + c);
      squares += x * x;
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(a.cols) + a.eps);
    for (int64_t c = 0; c < a.cols; ++c)
      put(a.y, r * a.cols + c, get(a.x, r * a.cols + c) * rstd * get(a.w, c));
    a.rstd[r] = static_cast<float>(rstd);
  }
}

void rms_norm_backward(ExecutionContext&, const RmsNormArgs& a) {
  std::vector<double> dw(static_cast<size_t>(a.cols), 0.0);
  for (int64_t r = 0; r < a.rows; ++r) {
    const double rstd = a.rstd[r];
    double dot = 0;  // of the normalised row and its gradient
    for (int64_t c = 0; c < a.cols; ++c) {
      const double xhat = get(a.x, r * a.cols + c) * rstd;
      const double dy = get(a.dy, r * a.cols + c);
      dw[static_cast<size_t>(c)] += dy * xhat;
      dot += dy * get(a.w, c) * xhat;
    }
    dot /= static_cast<double>(a.cols);
    for (int64_t c = 0; c < a.cols; ++c) {
      const int64_t i = r * a.cols + c;
      put(a.dx, i, rstd * (get(a.dy, i) * get(a.w, c) - get(a.x, i) * rstd * dot));
    }
  }
  for (int64_t c = 0; c < a.cols; ++c) a.dw[c] += static_cast<float>(dw[static_cast<size_t>(c)]);
}

}  // namespace sherd::reference
