// Normalisation of rows.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// y = x / sqrt(mean(x^2) + eps) * w for each row: x [n, d], w [d]. Keeps x and one f32 a row. A weight of
/// another dtype than x (Parameter::set_compute_dtype()) has the row computed in its own, and y rounded to x's. (Zhang and Sennrich,
/// Root Mean Square Layer Normalization, 2019.)
Var rms_norm(const Var& x, const Parameter& w, float eps = 1e-6f);

}  // namespace sherd::nn
