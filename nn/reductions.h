// Sums, means, maxima and log-sum-exp over dimensions.
//
// `dims` names dimensions, each once; negative ones count from the end. They are left out of the result, or have size 1
// with `keep`. x is f32 or bf16 (f64 with the reference kernels); sums are added up in fp32 over short runs and in double
// beyond, and rounded once. Their bits depend on the sizes alone. @throws InvalidArgument for other dimensions.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns the sum over `dims`; saves nothing.
Var sum(const Var& x, const std::vector<int64_t>& dims, bool keep = false);
/// Returns the mean over `dims`; saves nothing.
Var mean(const Var& x, const std::vector<int64_t>& dims, bool keep = false);
/// Returns the maximum over `dims`, NaN where an element is. Equal maxima share the gradient, as torch.amax. Saves x and
/// the result. @throws ShapeMismatch for dimensions without elements.
Var max(const Var& x, const std::vector<int64_t>& dims, bool keep = false);
/// Returns ln(sum(e^x)) over `dims`, composed of max, exp, sum and log.
Var logsumexp(const Var& x, const std::vector<int64_t>& dims, bool keep = false);
/// Returns mean((x - mean(x))^2) over `dims`: the biased variance.
Var variance(const Var& x, const std::vector<int64_t>& dims, bool keep = false);

}  // namespace sherd::nn
