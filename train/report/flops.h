// Floating-point operations of training a transformer, by formula.
#pragma once

#include <cstdint>

namespace sherd {

/// Matrix products for one token.
struct TokenWork {
  /// Elements of the matrices that it is multiplied by: all weights but norms, biases and looked-up
  /// embeddings; of experts the router and those that a token takes. A head that is tied to an embedding
  /// counts.
  int64_t weights = 0;
  /// Heads x elements of a head, over all layers with attention.
  int64_t attention_width = 0;
  /// The same over all layers whose tokens see a window of at most `window` tokens, which are not among those above.
  int64_t window_width = 0, window = 0;
  /// Frozen ones among `weights`: backward has no product for their own gradients.
  int64_t frozen = 0;
  /// Parts of `frozen` and of the two widths in blocks before the first trained parameter, which have no
  /// backward.
  int64_t ahead = 0, attention_ahead = 0, window_ahead = 0;
};

/// Floating-point operations (a multiplication and an addition are two) of forward and backward for one token
/// of a sequence of `seq` tokens under causal attention, the mean over the sequence: 6 for each weight
/// (Kaplan et al. 2020, section 2.1), and 6 (seq + 1) for each element of attention's width: two products
/// with (seq + 1) / 2 keys each, once forward and twice backward; with a window as many as a token sees in the mean. PaLM's formula (Chowdhery et al. 2022,
/// appendix B) counts the masked half of the scores as well, 12 seq. A frozen weight takes 4, and a part that is
/// ahead a third. Recomputation in backward and the
/// optimizer do not count.
double training_flops(const TokenWork& work, int64_t seq);

}  // namespace sherd
