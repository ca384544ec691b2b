// Sampling of the next token from the model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace sherd {

struct DrawOptions {
  /// Logits are divided by it; 0: the token of the largest logit (greedy), the first where several are alike.
  float temperature = 0.7f;
  /// Of the tokens by falling probability, as few as have at least this much together (nucleus; Holtzman et
  /// al., 2020).
  float top_p = 1;
  /// As many of the most probable ones at most; 0: all.
  int64_t top_k = 0;
};

/// @throws InvalidArgument naming --temperature, --top-p, --top-k: temperature is finite and not negative,
/// top_p in (0, 1], top_k not negative.
void check(const DrawOptions& options);

/// A pure function: the same logits, options, seed and position give the same token on every rank. Top k is
/// taken first, then top p of what is left, each ordered by probability and, where that is equal, by number.
/// A logit of -infinity leaves its token out.
/// @param position of the token in what is generated, from 0.
/// @throws InvalidArgument for options as check(), no logits, a logit that is NaN or infinity, none above
/// -infinity.
int32_t draw_token(std::span<const float> logits, const DrawOptions& options, uint64_t seed,
                   int64_t position);

}  // namespace sherd
