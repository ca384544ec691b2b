// Losses and their weights over the ranks.
#pragma once

#include <sherd/fsdp/module_base.h>

namespace sherd {

/// The mean of all elements of `losses` (f32 of any shape, on the model's device; a loss per token, or one
/// number) on all data-parallel ranks, those along the shard and the replicate dimension of the root's mesh;
/// ranks may have different numbers of elements, or none. Ranks along other dimensions compute on the same
/// data and have the same losses. Sums are in double. NaN when there are no elements at all.
///
/// Waits for the compute stream, with one all-reduce of two numbers (none on one rank): for every step of a
/// fast loop, a program had rather queue copies and read them later. Collective; the same on every rank.
/// @throws ShapeMismatch for another dtype; InvalidArgument before fully_shard(root).
double read_loss(const ModuleBase& root, const Tensor& losses);

/// The mean of one number of each data-parallel rank (those of read_loss()). Gradients are averaged over ranks, each of
/// which counts alike; where ranks have different numbers of elements, or none, this makes each element count alike:
///
///     loss = sum of the losses of this rank's elements / mean_over_ranks(root, number of them);
///
/// A rank without data runs the same forward and backward with an empty batch, whose sum is 0 (a mean of nothing is NaN).
/// Waits for the compute stream, with one all-reduce of a number (none on one rank). Collective; the same on every rank.
/// @throws InvalidArgument before fully_shard(root).
double mean_over_ranks(const ModuleBase& root, double value);

}  // namespace sherd
