// Global gradient norm and clipping.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

class Optimizer;

/// Figures of the gradients *before* clipping; filled in by the compute stream.
struct GradientStats {
  float norm = 0;     // L2, of the averaged gradients; the sum of squares is exact, rounded once
  int64_t zeros = 0;  // elements equal to zero
  int64_t non_finite = 0;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); max_norm = 0, or infinite, only measures.
///
/// Of a root with several optimizers: all gradients that are final and were neither used nor given up.
///
/// Every element of the global model counts once, padding and ignored parameters never (the latter are not
/// scaled, either): pieces of a tensor- or expert-parallel parameter are summed over their mesh dimension,
/// too; what is the same on all ranks of a dimension is not. One all-reduce for each mesh dimension that
/// spreads gradients (of each mesh, when parameters use several), none otherwise. The sum of squares is exact
/// (ExactSum), so the same gradients give the same norm, in bits, under every strategy, layout and number of
/// ranks, data- or tensor-parallel. A parameter that is whole on the ranks of a tensor-parallel dimension
/// must have the same gradient on all of them, in bits. Queued on the compute stream; read the result after
/// it has synchronised. Gradients with inf or NaN give a NaN norm and are not scaled.
///
/// The same sums tell whether the step may be taken (ShardRuntime::skip(), read by Optimizer::step()): the
/// norm is a finite f32, and no element is inf or NaN on any rank, those of ignored parameters and those that
/// should be the same on several ranks but are not included. That costs no further all-reduce, but for one
/// over all ranks when there are ignored parameters and no mesh's dimensions spread gradients over all of its
/// ranks (strategy no_shard, replicas).
/// @throws CommError when an earlier all-reduce has told that ranks used different units, or different learning
/// rates (ShardRuntime::served(): it travels with the sums here; under strategies whose sums do not span all
/// ranks, in every 64th step); InvalidArgument for max_norm < 0 or NaN, or when gradients are not final (no last backward since
/// the last step).
std::shared_ptr<const GradientStats> clip_grad_norm(ModuleBase& root, double max_norm);
/// Of the parameters of one optimizer alone: their norm, which decides about that optimizer's step.
std::shared_ptr<const GradientStats> clip_grad_norm(const Optimizer& optimizer, double max_norm);

}  // namespace sherd
