// Dropout with masks that are independent of the assignment of rows to ranks and microbatches.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include <sherd/nn/function.h>
#include <sherd/nn/kernels/dropout/dropout.h>

namespace sherd::nn {

/// Position of a forward in a run: the key of its random numbers. The mask of an element depends on the seed,
/// the step, the site (a name of the place in the model), how often that site was used before in the forward,
/// and the element's *global* row and column. So one rank with the whole batch and many ranks with
/// microbatches have the same mask. Nothing is stored: backward computes the mask again. A seed and a step
/// are the whole state for resuming.
///
/// Owned by the caller, one for each rank; modules that drop hold a pointer to it.
///
///     nn::RandomState random(seed);
///     for (each step) for (each microbatch) {
///       random.begin(step, first_row);   // the global number of the microbatch's first row
///       nn::Var loss = model(tape.input(tokens), targets);   // in it: nn::dropout(x, 0.1f, random,
///       "blocks.0.mlp")
///       ...
///     }
///
/// The second run of a scope that is recomputed has the masks of the first: it counts from where that began. The state
/// has to live until backward.
class RandomState {
 public:
  explicit RandomState(uint64_t seed) : seed_(seed) {}
  /// Begins a new forward, whose values' first row has this global index among the rows of the step's batch.
  /// For [batch * seq, d] it is the index of the first sequence times seq.
  /// Ranks that share sequences (nn/context_parallel.h) give first_row * ranks + rank * rows, for masks of their own. No site has been used in it.
  /// @throws InvalidArgument for a negative row.
  void begin(int64_t step, int64_t first_row);

  uint64_t seed() const { return seed_; }
  int64_t step() const { return step_; }
  int64_t first_row() const { return first_row_; }
  /// Returns the key of the next call at `site`, and counts it. For values with other rows than those of
  /// begin() (one for each sequence, for example) change the key's first_row.
  DropoutKey next(std::string_view site);

 private:
  uint64_t seed_;
  int64_t step_ = 0, first_row_ = 0;
  std::unordered_map<uint64_t, uint32_t> calls_;  // by DropoutKey::key
};

/// Returns x / (1 - p) with probability 1 - p for each element, else 0, by the mask of the next call at
/// `site`. Rows are those of the first dimension. In evaluation (inside NoGrad, or x on no tape) and for p =
/// 0 it returns x itself; on a tape the call is counted all the same. Saves nothing. (Srivastava et al.,
/// Dropout, 2014.)
/// @throws InvalidArgument for p outside [0, 1).
Var dropout(const Var& x, float p, RandomState& random, std::string_view site);
/// Returns the same by a key of the caller.
Var dropout(const Var& x, float p, const DropoutKey& key);

}  // namespace sherd::nn
