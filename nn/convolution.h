// Convolutions and pooling, by copies of windows.
//
// x is [n, channels, height, width], f32 or bf16 (f64 with the reference kernels). A result has
// (size + 2 padding - kernel) / stride + 1 rows and columns, rounded down. @throws ShapeMismatch for kernels that are
// larger than the padded x, and for channels that differ; InvalidArgument for a stride below 1 or a negative padding.
#pragma once

#include <array>

#include <sherd/nn/algebra.h>

namespace sherd::nn {

/// Height and width.
using Pair = std::array<int64_t, 2>;

struct WindowOptions {
  Pair stride = {1, 1};
  Pair padding = {0, 0};  ///< zeros on each side
};

/// Returns every window of x: [n, out height, out width, channels, kernel height, kernel width]. Backward adds the
/// windows up, in the order of their elements.
Var windows(const Var& x, Pair kernel, const WindowOptions& options = {});

/// Returns the cross-correlation of x with w [out, channels, kernel height, kernel width], plus bias [out] unless that is
/// undefined: [n, out, out height, out width]. One product of the windows, which are saved, and the weights. w may be a
/// parameter.
Var conv2d(const Var& x, const Var& w, const Var& bias = {}, const WindowOptions& options = {});
/// Returns the same along one dimension: x [n, channels, length], w [out, channels, kernel].
Var conv1d(const Var& x, const Var& w, const Var& bias = {}, int64_t stride = 1, int64_t padding = 0);

/// Returns the mean of each window, whose padding counts as elements: [n, channels, out height, out width].
Var average_pool2d(const Var& x, Pair kernel, const WindowOptions& options);
/// Returns the maximum of each window, without padding.
Var max_pool2d(const Var& x, Pair kernel, Pair stride);

}  // namespace sherd::nn
