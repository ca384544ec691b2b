// Global gradient norm and clipping.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Figures of the gradients *before* clipping; filled in by the compute stream.
struct GradientStats {
  float norm = 0;     // L2, of the averaged gradients; the sum of squares is exact, rounded once
  int64_t zeros = 0;  // elements equal to zero
  int64_t non_finite = 0;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); max_norm = 0 only measures.
///
/// Every element counts once, padding and ignored parameters never (the latter are not scaled, either). One
/// all-reduce for each mesh dimension that shards gradients, none otherwise. The sum of squares is exact
/// (ExactSum), so the same gradients give the same norm, in bits, under every strategy, layout and number of
/// ranks. Queued on the compute stream; read the result after it has synchronised. Gradients with inf or NaN
/// give a NaN norm and are not scaled.
/// @throws InvalidArgument for max_norm < 0 or when gradients are not final (no last backward since the last
/// step).
std::shared_ptr<const GradientStats> clip_grad_norm(Module& root, double max_norm);

}  // namespace sherd
