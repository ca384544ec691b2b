// Global gradient norm and clipping.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/kernels/ops/squares.h>

namespace sherd {

class Optimizer;

/// Figures of the gradients *before* clipping; filled in by the compute stream.
struct GradientStats {
  float norm = 0;     // L2 or as asked for, of the averaged gradients; sums are exact, rounded once
  int64_t zeros = 0;  // elements equal to zero
  int64_t non_finite = 0;
};

struct ClipOptions {
  NormKind norm = NormKind::two;
  /// Throws, on all ranks alike, when the step may not be taken. Waits for the compute stream.
  bool error_if_nonfinite = false;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); max_norm = 0, or infinite, only measures.
///
/// Of a root with several optimizers: all gradients that are final and were neither used nor given up.
///
/// Every element of the global model counts once, padding and ignored parameters never (the latter are not
/// scaled, either): pieces of a tensor- or expert-parallel parameter are summed over their mesh dimension,
/// too; what is the same on all ranks of a dimension is not. One all-reduce for each mesh dimension that
/// spreads gradients (of each mesh, when parameters use several), none otherwise. The sum of squares (of magnitudes
/// for NormKind::one) is exact (ExactSum), so the same gradients give the same norm, in bits, under every strategy,
/// layout and number of ranks, data- or tensor-parallel. NormKind::infinity needs one more pass over the gradients and
/// one more all-reduce, over all ranks. A parameter that is whole on the ranks of a tensor-parallel dimension
/// must have the same gradient on all of them, in bits. Queued on the compute stream; read the result by
/// read_stats(), or after that has synchronised. Gradients with inf or NaN give a NaN norm and are not scaled.
///
/// The same sums tell whether the step may be taken (ShardRuntime::skip(), read by Optimizer::step()): the
/// norm is a finite f32, and no element is inf or NaN on any rank, those of ignored parameters and those that
/// should be the same on several ranks but are not included. That costs no further all-reduce, but for one
/// over all ranks when there are ignored parameters and no mesh's dimensions spread gradients over all of its
/// ranks (strategy no_shard, replicas).
/// @throws CommError when an earlier all-reduce has told that ranks used different units, or different learning
/// rates (ShardRuntime::served(): it travels with the sums here; under strategies whose sums do not span all
/// ranks, in every 64th step); InvalidArgument for max_norm < 0 or NaN, or when gradients are not final (no last
/// backward since the last step); Error by ClipOptions::error_if_nonfinite, the gradients being as they were.
std::shared_ptr<const GradientStats> clip_grad_norm(ModuleBase& root, double max_norm, const ClipOptions& options = {});
/// Of the parameters of one optimizer alone: their norm, which decides about that optimizer's step.
std::shared_ptr<const GradientStats> clip_grad_norm(const Optimizer& optimizer, double max_norm,
                                                    const ClipOptions& options = {});

/// The figures, once the compute stream has come to them: waits for that. The same on every rank.
GradientStats read_stats(ModuleBase& root, const std::shared_ptr<const GradientStats>& stats);

/// The coming step is skipped, as for gradients that are not finite, when `loss` is infinite or NaN: also where the
/// gradients of such a loss are finite. After clip_grad_norm() of the root, before Optimizer::step(). Queued on the
/// compute stream, without communication.
/// @param loss f64 [1] on the device, the same on every rank (summed over ranks, say, so that one rank's counts).
/// @throws InvalidArgument when clip_grad_norm() of the root has not looked at this step's gradients.
void skip_unless_finite(ModuleBase& root, const Tensor& loss);

/// Clamps every gradient element to [-value, value]; NaN stays. Of the same gradients as clip_grad_norm(), ignored
/// parameters' included. Queued on the compute stream, without communication. It does not decide whether the step is
/// taken: infinite elements become finite ones, unless clip_grad_norm() has looked before.
/// @throws InvalidArgument for a value that is negative or NaN, or when gradients are not final.
void clip_grad_value(ModuleBase& root, double value);
void clip_grad_value(const Optimizer& optimizer, double value);

}  // namespace sherd
