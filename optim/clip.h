// Global gradient norm and clipping.
#pragma once

#include <memory>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/kernels/squares/squares.h>

namespace sherd {

class Optimizer;

/// Statistics of the gradients *before* clipping; the compute stream fills them in.
struct GradientStats {
  /// L2 or the requested norm of the averaged gradients; sums are exact, rounded once. NaN when any element is
  /// inf or NaN, also one that belongs to no norm.
  float norm = 0;
  int64_t zeros = 0;  // elements equal to zero
  /// Elements that are inf or NaN. Without any among those of the norm: the number on all ranks in ignored
  /// parameters, and in copies of a parameter that should be equal on several ranks but differ.
  int64_t non_finite = 0;
};

struct ClipOptions {
  NormKind norm = NormKind::two;
  /// Throw, on all ranks, when the step must be skipped. Waits for the compute stream.
  bool error_if_nonfinite = false;
  /// Leave the gradients as they are; Optimizer::step() multiplies by the factor, in the optimizers' own passes. The same
  /// bits with one pass over the gradients less. Nothing else may read or clip them before the step.
  bool in_update = false;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); max_norm = 0, or infinite, only measures.
///
/// With several optimizers at a root it scales all gradients that are final and were neither used nor
/// released.
///
/// Every element of the global model counts once. Padding and ignored parameters never count, and ignored
/// parameters are not scaled. Pieces of a tensor- or expert-parallel parameter are summed over their mesh
/// dimension, too; values that are equal on all ranks of a dimension are not. It needs one all-reduce for
/// each mesh dimension that shards gradients or is not data-parallel (of each mesh, when parameters use
/// several), none otherwise. The
/// sum of squares (of magnitudes for NormKind::one) is exact (ExactSum). So the same gradients give the same
/// norm, in bits, under every strategy, layout and number of ranks, data- or tensor-parallel.
/// NormKind::infinity needs one more pass over the gradients and one more all-reduce, over all ranks. A
/// parameter that is unsharded on the ranks of a tensor-parallel dimension must have the same gradient on all
/// of them, in bits. Queued on the compute stream; read the result by read_stats(), or after synchronizing
/// that stream. Gradients with inf or NaN give a NaN norm and are not scaled.
///
/// The same sums decide whether the step is taken (ShardRuntime::skip(), read by Optimizer::step()). It is
/// taken when the norm is a finite f32 and no element is inf or NaN on any rank. This includes ignored
/// parameters, and elements that tensor-parallel ranks compute each for itself and that should be equal but
/// differ. It needs no further all-reduce, with one exception: one over all ranks when there are ignored
/// parameters and the others do not span all ranks of any mesh (strategy no_shard, replicas).
/// @throws CommError when an earlier all-reduce has shown that ranks used different units, or different
/// learning rates (ShardRuntime::served(): it is part of these sums; under strategies whose sums do not span
/// all ranks, in every 64th step); InvalidArgument for max_norm < 0 or NaN, or when gradients are not final
/// (no last backward since the last step); Error by ClipOptions::error_if_nonfinite, with the gradients
/// unchanged.
/// @throws InvalidArgument without in_update where gradients are kept in 16 bits (FullyShardOptions::grad_dtype).
std::shared_ptr<const GradientStats> clip_grad_norm(ModuleBase& root, double max_norm,
                                                    const ClipOptions& options = {});
/// Clips the gradients of one optimizer's parameters alone, by their norm, which decides about that
/// optimizer's step.
std::shared_ptr<const GradientStats> clip_grad_norm(const Optimizer& optimizer, double max_norm,
                                                    const ClipOptions& options = {});

/// Returns the statistics; waits until the compute stream has reached them. The same on every rank.
[[nodiscard]] GradientStats read_stats(ModuleBase& root, const std::shared_ptr<const GradientStats>& stats);

/// Skips the next step, as for non-finite gradients, when `loss` is infinite or NaN, even where its gradients
/// are finite. Call it after clip_grad_norm() of the root and before Optimizer::step(). Queued on the compute
/// stream, without communication.
/// @param loss f64 [1] on the device, the same on every rank (for example summed over ranks, so that each
/// rank's counts).
/// @throws InvalidArgument when clip_grad_norm() of the root has not checked this step's gradients.
void skip_unless_finite(ModuleBase& root, const Tensor& loss);

/// Clamps every gradient element to [-value, value]; NaN stays. It covers the gradients of clip_grad_norm(),
/// and those of ignored parameters. Queued on the compute stream, without communication. It does not decide
/// whether the step is taken: infinite elements become finite, unless clip_grad_norm() has checked before.
/// @throws InvalidArgument for a value that is negative or NaN, or when gradients are not final.
void clip_grad_value(ModuleBase& root, double value);
void clip_grad_value(const Optimizer& optimizer, double value);

}  // namespace sherd
