// Slices and concatenations of values along rows.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns the rows (first dimension) of all parts, one after another. Parts have one dtype and equal further
/// dimensions; a part may have no rows. Copies.
/// @throws InvalidArgument without parts; ShapeMismatch for parts that do not fit.
Var concat_rows(const std::vector<Var>& parts);
/// Returns rows [begin, end) of x; no copy. Backward writes a gradient of x's size, 0 outside these rows.
/// @throws InvalidArgument outside of x.
Var rows(const Var& x, int64_t begin, int64_t end);
/// Splits x [n, sum of widths] into values [n, widths[i]], by the order of columns, for example the product
/// with fused weights. Copies; one gradient for all.
/// @throws ShapeMismatch for widths that do not add up, or a negative one.
std::vector<Var> split_columns(const Var& x, const std::vector<int64_t>& widths);

}  // namespace sherd::nn
