// Exact sums over the gradients of a whole model, for the norm and for skipped steps. Private to optim/.
#pragma once

#include <vector>

#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/squares/squares.h>

namespace sherd {

struct GradientSums {
  /// ExactSum::kWords words each; the model's sums are their sum.
  std::vector<Tensor> sums;
  /// SameValue::kWords words each: sums of ShardRuntime::served() over the ranks that these all-reduces span.
  /// They are sent in the same all-reduces.
  std::vector<Tensor> served;
};

/// Both queue on the compute stream, after the pending reductions, and count every element of the global
/// model once; see clip_grad_norm(). In ExactSum::kElsewhere they leave the number of non-finite elements on
/// any rank, of any parameter: 0 on every rank or on none. Of parameters whose gradients are final, those in `set`
/// alone unless it is null. That takes in ignored parameters, and parameters that tensor-parallel ranks hold
/// uncut, whose gradients should be the same on these ranks, but are not.

/// One pair of tensors for each mesh. One all-reduce for each mesh dimension that spreads gradients or is not
/// data-parallel (ShardAxes::others()). Where no mesh's dimensions of these kinds span all of its ranks, one more over
/// all ranks: when there are ignored parameters, else in every 64th step (ShardRuntime::comparison_due()), for what
/// was served.
/// NormKind::one sums magnitudes in the place of squares.
GradientSums sums_by_dimension(ShardRuntime& runtime, const UpdateSet* set, NormKind kind = NormKind::two);

/// Returns the same in one pair, with a single all-reduce over all ranks (none for one rank).
GradientSums sums_at_once(ShardRuntime& runtime, const UpdateSet* set);

/// Returns the largest magnitude of the same elements, f32 [1], with one all-reduce over all ranks (none for
/// one rank).
Tensor largest_gradient(ShardRuntime& runtime, const UpdateSet* set);

/// Queues the comparison of served(). Once the device has reached it and ranks differed,
/// ShardRuntime::require_gradients() throws.
void compare_served(ShardRuntime& runtime, const std::vector<Tensor>& served);

/// Returns the parts of those gradients that clipping scales.
std::vector<ScaleSegment> clipped_pieces(const ShardRuntime& runtime, const UpdateSet* set);
/// Returns those and the gradients of ignored parameters.
std::vector<ScaleSegment> pieces_of(const ShardRuntime& runtime, const UpdateSet* set);

}  // namespace sherd
