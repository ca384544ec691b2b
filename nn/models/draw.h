// Sampling of the next token from the model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace sherd::nn {

struct DrawOptions {
  /// Divisor of the logits; 0: the token of the largest logit (greedy), the first of equal ones.
  float temperature = 0.7f;
  /// Keeps the fewest most probable tokens whose sum is at least this (nucleus; Holtzman et al., 2020).
  float top_p = 1;
  /// Keeps at most this many of the most probable tokens; 0: all.
  int64_t top_k = 0;
};

/// Checks the options. @throws InvalidArgument naming them unless temperature is
/// finite and not negative, top_p is in (0, 1], and top_k is not negative.
void check(const DrawOptions& options);

/// Draws a token. A pure function: the same logits, options, seed and position give the same token on every
/// rank. Top k is applied first, then top p to the rest, each ordered by probability and then by token. A
/// logit of -infinity excludes its token.
/// @param position of the token in what is generated, from 0.
/// @throws InvalidArgument for options as check(), no logits, a logit that is NaN or infinity, none above
/// -infinity.
int32_t draw_token(std::span<const float> logits, const DrawOptions& options, uint64_t seed,
                   int64_t position);

}  // namespace sherd::nn
