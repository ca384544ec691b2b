// Rules for the first values of parameters and buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <sherd/kernels/device/shape.h>

namespace sherd {

enum class InitKind {
  normal,            // mean, stddev; stddev 0: the constant `mean`
  uniform,           // low, high
  truncated_normal,  // mean, stddev, low, high
  orthogonal,        // gain, by_blocks
  function,          // function
};

/// Divisor of a spread: the square root of this.
enum class Fan { none, in, out, average };

/// Rule for a parameter's first values. Element i of the global parameter (all tensor-parallel pieces
/// together) depends only on the seed, the parameter's full name and i. So every mesh, strategy, layout and
/// cut starts from the same model. The functions below make one and define each kind.
struct Init {
  float mean = 0;
  float stddev = 0;
  InitKind kind = InitKind::normal;
  float low = 0, high = 0;
  /// Unless `none`: normal values have stddev gain / sqrt(fan); uniform ones have bounds -+ gain * sqrt(3 /
  /// fan), which give the same variance.
  Fan fan = Fan::none;
  float gain = 1;
  bool by_blocks = false;
  std::function<float(int64_t index)> function = {};
};

inline Init normal(float stddev) { return {.stddev = stddev}; }
inline Init constant(float value) { return {.mean = value}; }
/// Returns uniform values between `low` and `high`; rounding may produce either bound.
inline Init uniform(float low, float high) { return {.kind = InitKind::uniform, .low = low, .high = high}; }
/// Returns N(mean, stddev) conditioned on [low, high]. Bounds are values, not multiples of stddev, with the
/// defaults of PyTorch's trunc_normal_. At least one value in a hundred must be within the bounds.
inline Init truncated_normal(float stddev, float mean = 0, float low = -2, float high = 2) {
  return {.mean = mean, .stddev = stddev, .kind = InitKind::truncated_normal, .low = low, .high = high};
}

/// He et al., 2015 (kaiming_normal_ and kaiming_uniform_): variance gain^2 / fan, with the gain of relu. The
/// gain is 1 for a linear layer, and sqrt(1/3) for the weights of PyTorch's nn.Linear (kaiming_uniform with a
/// = sqrt(5)).
///
/// Fans are those of the *global* parameter as weights [out, in] of a linear layer. For a stack [count, out,
/// in] they are those of each matrix; for four and more dimensions those of a convolution [out, in,
/// window...]. Row blocks do not change them.
inline Init kaiming_normal(Fan fan = Fan::in, float gain = 1.41421356f) { return {.fan = fan, .gain = gain}; }
inline Init kaiming_uniform(Fan fan = Fan::in, float gain = 1.41421356f) {
  return {.kind = InitKind::uniform, .fan = fan, .gain = gain};
}
/// Glorot and Bengio, 2010 (xavier_normal_ and xavier_uniform_): variance gain^2 * 2 / (fan in + fan out).
inline Init xavier_normal(float gain = 1) { return {.fan = Fan::average, .gain = gain}; }
inline Init xavier_uniform(float gain = 1) {
  return {.kind = InitKind::uniform, .fan = Fan::average, .gain = gain};
}

/// Returns `gain` times a uniformly distributed matrix with orthonormal rows, or orthonormal columns when it
/// has more rows than columns (orthogonal_). For a stack [count, rows, columns] this holds for each matrix;
/// for four and more dimensions for the matrix [first, all others]. Saxe et al., 2013.
/// @param by_blocks each row block (Parameter::row_blocks()) by itself, such as q, k and v of a fused
/// projection
///
/// Each rank that holds a row of the matrix (or block) computes it on the host: 4 rows columns min(rows,
/// columns) operations in f64 and 16 bytes per element. A 1024 x 1024 matrix takes some seconds; the time
/// grows with the third power.
inline Init orthogonal(float gain = 1, bool by_blocks = false) {
  return {.kind = InitKind::orthogonal, .gain = gain, .by_blocks = by_blocks};
}

/// Returns f(i) for element i of the global parameter in row-major order. Each rank's thread calls f for the
/// elements that it holds, so several ranks may call it for the same element: f must return the same value
/// for an index on every rank. Ranks cannot compare functions, as they compare the other kinds: a function
/// that differs makes ranks start from different models undetected.
inline Init from_function(std::function<float(int64_t index)> f) {
  return {.kind = InitKind::function, .function = std::move(f)};
}

/// Returns the fan of a global parameter of two or more dimensions. @pre fan is not `none`
double fan_of(const Shape& whole, Fan fan);
/// Returns "" when the rule can fill a tensor of this shape, else the error.
std::string check_init(const Init& init, const Shape& shape);
/// Returns a digest of everything in it except the function.
uint64_t digest_of(const Init& init);

}  // namespace sherd
