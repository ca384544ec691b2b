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

/// What a spread is divided by the square root of.
enum class Fan { none, in, out, average };

/// How a parameter gets its first values. Element i of the whole parameter (all tensor-parallel pieces
/// together) depends only on the seed, the parameter's full name and i, so every mesh, strategy, layout and
/// cut starts from the same model. Make one by the functions below, which say what each kind means.
struct Init {
  float mean = 0;
  float stddev = 0;
  InitKind kind = InitKind::normal;
  float low = 0, high = 0;
  /// Not `none`: normal values have stddev gain / sqrt(fan), uniform ones the bounds -+ gain * sqrt(3 / fan),
  /// which have the same variance.
  Fan fan = Fan::none;
  float gain = 1;
  bool by_blocks = false;
  std::function<float(int64_t index)> function = {};
};

inline Init normal(float stddev) { return {.stddev = stddev}; }
inline Init constant(float value) { return {.mean = value}; }
/// Between `low` and `high`, either of which a value may round to.
inline Init uniform(float low, float high) { return {.kind = InitKind::uniform, .low = low, .high = high}; }
/// N(mean, stddev) given that the value lies in [low, high]: values, not multiples of stddev, with the
/// defaults of PyTorch's trunc_normal_. The bounds must let through one value in a hundred.
inline Init truncated_normal(float stddev, float mean = 0, float low = -2, float high = 2) {
  return {.mean = mean, .stddev = stddev, .kind = InitKind::truncated_normal, .low = low, .high = high};
}

/// He et al., 2015 (kaiming_normal_ and kaiming_uniform_): variance gain^2 / fan, with the gain of relu. The
/// gain is 1 for a linear layer, sqrt(1/3) for the weights of PyTorch's nn.Linear (kaiming_uniform with a =
/// sqrt(5)).
///
/// Fans are those of the *whole* parameter as weights [out, in] of a linear layer; of each matrix of a stack
/// [count, out, in]; of four and more dimensions as a convolution's [out, in, window...]. Row blocks do not
/// change them.
inline Init kaiming_normal(Fan fan = Fan::in, float gain = 1.41421356f) { return {.fan = fan, .gain = gain}; }
inline Init kaiming_uniform(Fan fan = Fan::in, float gain = 1.41421356f) {
  return {.kind = InitKind::uniform, .fan = fan, .gain = gain};
}
/// Glorot and Bengio, 2010 (xavier_normal_ and xavier_uniform_): variance gain^2 * 2 / (fan in + fan out).
inline Init xavier_normal(float gain = 1) { return {.fan = Fan::average, .gain = gain}; }
inline Init xavier_uniform(float gain = 1) {
  return {.kind = InitKind::uniform, .fan = Fan::average, .gain = gain};
}

/// `gain` times a matrix of which the rows are orthonormal, or the columns where there are more rows than
/// columns, uniformly distributed among those (orthogonal_): each matrix of a stack [count, rows, columns];
/// of four and more dimensions the matrix [first, all others]. Saxe et al., 2013.
/// @param by_blocks each row block (Parameter::row_blocks()) by itself, such as q, k and v of a fused
/// projection
///
/// Computed on the host by every rank that holds a row of the matrix (or block): 4 rows columns min(rows,
/// columns) operations in f64 and 16 bytes for each of its elements. A 1024 x 1024 matrix takes some seconds,
/// and the time grows with the third power.
inline Init orthogonal(float gain = 1, bool by_blocks = false) {
  return {.kind = InitKind::orthogonal, .gain = gain, .by_blocks = by_blocks};
}

/// f(i) for element i of the whole parameter in row-major order. Called by each rank's thread for the
/// elements that it holds, some of them on several ranks: it must return the same for the same index, whoever
/// asks. It cannot be compared over ranks, as the other kinds are: one that differs makes ranks begin with
/// different models unnoticed.
inline Init from_function(std::function<float(int64_t index)> f) {
  return {.kind = InitKind::function, .function = std::move(f)};
}

/// Of a whole parameter of two or more dimensions. @pre fan is not `none`
double fan_of(const Shape& whole, Fan fan);
/// "" when the rule can fill a tensor of as many dimensions, else what is wrong.
std::string check_init(const Init& init, const Shape& shape);
/// A digest of everything in it but the function.
uint64_t digest_of(const Init& init);

}  // namespace sherd
