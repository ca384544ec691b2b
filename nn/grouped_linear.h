// Grouped linear layers: products of groups of rows, each with its own matrix.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// linear() with a stack of matrices, as experts have them: rows [offsets[e], offsets[e + 1]) of y are those of
/// x w[e]^T + bias[e]. x [n, in], w [groups, out, in], bias [groups, out] or not defined(), y [n, out]; offsets
/// groups + 1 numbers on the host, from 0 to n and never falling. Backward is that of linear(), group by group; a
/// group without rows adds zeros, and a call without any row is a call like others.
/// @throws ShapeMismatch for shapes or offsets that do not fit.
Var grouped_linear(const Var& x, std::vector<int64_t> offsets, const Parameter& w, const Parameter& bias = {});

}  // namespace sherd::nn
