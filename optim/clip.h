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
/// Every element of the global model counts once, padding and ignored parameters never (the latter are not
/// scaled, either): pieces of a tensor- or expert-parallel parameter are summed over their mesh dimension,
/// too; what is the same on all ranks of a dimension is not. One all-reduce for each mesh dimension that
/// spreads gradients (of each mesh, when parameters use several), none otherwise. The sum of squares is exact
/// (ExactSum), so the same gradients give the same norm, in bits, under every strategy, layout and number of
/// ranks, data- or tensor-parallel. A parameter that is whole on the ranks of a tensor-parallel dimension
/// must have the same gradient on all of them, in bits. Queued on the compute stream; read the result after
/// it has synchronised. Gradients with inf or NaN give a NaN norm and are not scaled.
/// @throws InvalidArgument for max_norm < 0 or when gradients are not final (no last backward since the last
/// step).
std::shared_ptr<const GradientStats> clip_grad_norm(Module& root, double max_norm);

}  // namespace sherd
