// Grouped linear layers: products of groups of rows, each with its own matrix.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns linear() with a stack of matrices, as experts use: rows [offsets[e], offsets[e + 1]) of y are
/// those of x w[e]^T + bias[e]. x [n, in], w [groups, out, in], bias [groups, out] or not defined(), y [n,
/// out]; with in_out w is [groups, in, out] and y x w[e] + bias[e]; offsets: groups + 1 indices on the host, from 0 to n, never decreasing. Backward is that of
/// linear(), group by group. A group without rows adds zeros; a call without any row is valid.
/// @throws ShapeMismatch for shapes or offsets that do not fit.
Var grouped_linear(const Var& x, std::vector<int64_t> offsets, const Parameter& w, const Parameter& bias = {},
                   bool in_out = false);

}  // namespace sherd::nn
