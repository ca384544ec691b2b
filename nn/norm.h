// Normalisation of rows.
#pragma once

#include <sherd/nn/function.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn {

/// Returns y = x / sqrt(mean(x^2) + eps) * w for each row: x [n, d], w [d]. Saves x and one f32 per row.
/// Where the weight has another dtype than x (Parameter::set_compute_dtype()), all is computed in the
/// weight's dtype, and y is rounded to x's. (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.)
/// @param tp ranks each of which has other rows of the same batch (possibly none), while w is unsharded on
/// all of them: its gradient is summed over them.
/// @param base is added to w, in f32, as in Gemma, whose weights are distances from 1; all is computed in f32 then
Var rms_norm(const Var& x, const Parameter& w, float eps = 1e-6f, const TensorParallel& tp = {},
             float base = 0);

/// Returns y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + bias for each row: x [n, d], w [d],
/// bias [d] or not defined(), of w's dtype, which may differ from x's as above. Saves x and two f32 per row.
/// `tp` as above, of w and bias. (Ba, Kiros and Hinton, Layer Normalization, 2016.)
Var layer_norm(const Var& x, const Parameter& w, const Parameter& bias = {}, float eps = 1e-5f,
               const TensorParallel& tp = {});

}  // namespace sherd::nn
