// Slices and concatenations of values along rows.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// The rows (first dimension) of all parts, one after another: parts of one dtype and of equal further
/// dimensions; a part may have no rows. Copies.
/// @throws InvalidArgument without parts; ShapeMismatch for parts that do not fit.
Var concat_rows(const std::vector<Var>& parts);
/// Rows [begin, end) of x; no copy. Backward writes a gradient of x's size, 0 outside of these rows.
/// @throws InvalidArgument outside of x.
Var rows(const Var& x, int64_t begin, int64_t end);
/// x [n, sum of widths] as values [n, widths[i]], by the order of columns: what a product with fused weights
/// gave. Copies; one gradient for all.
/// @throws ShapeMismatch for widths that do not add up, or a negative one.
std::vector<Var> split_columns(const Var& x, const std::vector<int64_t>& widths);

}  // namespace sherd::nn
