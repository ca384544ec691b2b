#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace sherd {

IterationForm form_for(const OrthogonalizeOptions& o, int64_t rows, int64_t cols) {
  if (o.form != IterationForm::by_shape) return o.form;
  return std::max(rows, cols) >= 3 * std::min(rows, cols) ? IterationForm::gram : IterationForm::standard;
}

std::vector<std::string> problems_of(const OrthogonalizeOptions& o, bool gram) {
  std::vector<std::string> wrong;
  if (!(o.eps >= 0 && std::isfinite(o.eps)))
    wrong.push_back(fmt::format("eps {} must be finite and not negative", o.eps));
  if (o.working != DType::f32 && o.working != DType::bf16 && o.working != DType::f16)
    wrong.push_back(fmt::format("working dtype {} must be f32, bf16 or f16", name_of(o.working)));
  if (o.method == Orthogonalizer::newton_schulz) {
    const int steps = static_cast<int>(o.steps.size());
    if (steps == 0) wrong.push_back("no steps; give at least one row of coefficients");
    for (auto& [a, b, c] : o.steps)
      if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c))
        wrong.push_back(fmt::format("coefficients ({}, {}, {}) are not finite", a, b, c));
    for (size_t i = 0; i < o.restarts.size(); ++i)
      if (o.restarts[i] < 1 || o.restarts[i] >= steps || (i > 0 && o.restarts[i] <= o.restarts[i - 1])) {
        wrong.push_back(fmt::format("restarts {} must increase and lie in 1..{}", o.restarts, steps - 1));
        break;
      }
    if (gram && o.working == DType::bf16)
      wrong.push_back(
          "the gram form in bf16 has no bound on its error; use working dtype f16 or f32, or the standard "
          "form");
  }
  return wrong;
}

}  // namespace sherd
