// Segments: pieces of parameters that the passes of an optimizer step process. A pass takes a list of them,
// so that a model of many small parameters costs few launches. Plain pointers. The result for an element
// depends on that element alone, not on its place in its segment.
#pragma once

#include <cstdint>

namespace sherd {

/// A piece of an AdamW pass.
struct AdamWSegment {
  float* w = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  const float* g = nullptr;
  /// Receives w, rounded once to the pass's dtype of copies; may be null.
  void* copy = nullptr;
  int64_t count = 0;
  double weight_decay = 0;
  /// Which of the pass's bias corrections is its.
  int64_t bias = 0;
};

/// A piece whose squares, or magnitudes, are summed.
struct SquaresSegment {
  const float* x = nullptr;
  int64_t count = 0;
  /// ExactSum::kWords words that sum, zeros and non-finite elements are added to; null: none of it.
  int64_t* sum = nullptr;
  /// The number of non-finite elements is added here as well; may be null.
  int64_t* non_finite = nullptr;
};

/// A piece that is multiplied, or clamped.
struct ScaleSegment {
  float* x = nullptr;
  int64_t count = 0;
};

/// A piece of a momentum pass: `count` elements of one parameter, to be written at element `at` of the packed
/// message; -1: only the buffer moves, nothing is written.
struct MomentumSegment {
  float* buffer = nullptr;
  const float* gradient = nullptr;
  /// Read when l2 decay is asked for, otherwise ignored.
  const float* weight = nullptr;
  int64_t count = 0;
  int64_t at = 0;
};

/// A piece of an update pass: w = decay * w + alpha * o for `count` elements, o at element `at` of the packed
/// message.
struct UpdateSegment {
  float* weight = nullptr;
  int64_t count = 0;
  int64_t at = 0;
  float decay = 1, alpha = 0;
};

/// A piece of a packing pass: `count` elements from one packed buffer to another.
struct CopySegment {
  int64_t to = 0, from = 0, count = 0;
};

}  // namespace sherd
