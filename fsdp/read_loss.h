// Losses and their weights over the ranks.
#pragma once

#include <sherd/fsdp/module_base.h>

namespace sherd {

/// Returns the mean of all elements of `losses` (f32 of any shape on the model's device: a loss per token, or
/// one value) over all data-parallel ranks, those along the shard, the context and the replicate dimension
/// of the root's mesh. Ranks may have different numbers of elements, or none. Ranks along other dimensions compute on the
/// same data and have the same losses. Sums are in double. Returns NaN when no rank has elements.
///
/// Waits for the compute stream, with one all-reduce of two values (none on one rank). In every step of a
/// fast loop, queue copies instead and read them later. Collective; same result on every rank.
/// @throws ShapeMismatch for another dtype; InvalidArgument before fully_shard(root).
double read_loss(const ModuleBase& root, const Tensor& losses);

/// Returns the mean of one value of each data-parallel rank (see read_loss()). Gradients are averaged over
/// ranks with equal weights. Where ranks have different numbers of elements, or none, this gives equal
/// weights to elements:
///
///    loss = sum of the losses of this rank's elements / mean_over_ranks(root, number of them);
///
/// A rank without data runs the same forward and backward with an empty batch, whose sum is 0 (the mean of an
/// empty batch is NaN). Waits for the compute stream, with one all-reduce of a value (none on one rank).
/// Collective; same result on every rank.
/// @throws InvalidArgument before fully_shard(root).
double mean_over_ranks(const ModuleBase& root, double value);

}  // namespace sherd
