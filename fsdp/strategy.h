// Strategy table. A strategy is a row of placements.
#pragma once

#include <string>
#include <string_view>

#include <sherd/dtensor/placement.h>

namespace sherd {

/// ZeRO stages by the state they shard (Rajbhandari et al. 2020): zero0, zero1, zero2, zero3.
///
/// At an equal number of data-parallel ranks all stages give the same bits, for any layout, any Outer, and
/// any number of replicas (in shard groups of a power of two), if the gradient of a parameter comes from one
/// backward per step. When it is the sum of several (microbatches, a unit called more than once), the order
/// of summation differs between families. Bits then agree inside a family, and to rounding between families:
/// - no_shard and optim, any number of replicas: each rank sums its own gradients, then the ranks are summed.
/// - optim_grads and optim_grads_params with one number of replicas: each gradient is summed over the shard group
///   when its backward ends, then those sums, then replicas. A shard group of one rank has nothing to scatter and
///   belongs to the first family; a model does if the shard groups of all its units have one rank, those of experts
///   included. A matrix in a bucket that spans units (LayoutPolicy::whole_param) is summed when
///   the backwards of all its units have ended. The bits are the same, except for a unit whose client reduces
///   several backwards of it in one microbatch (tapes do not), which agrees to rounding.
/// A 16-bit FullyShardOptions::reduce_dtype rounds in the shard group: bits then agree only for equal
/// replicas.
enum class Strategy { no_shard, optim, optim_grads, optim_grads_params };

/// State that HSDP's outer dimension shards: none, or the optimizer state.
enum class Outer { no_shard, optim };

/// Parses "no_shard" ... "optim_grads_params", or the aliases "zero0" ... "zero3".
/// @throws InvalidArgument listing the legal names.
Strategy parse_strategy(std::string_view name);
const char* name_of(Strategy s);
const char* name_of(Outer o);

/// Placements of a group's flat buffers along one mesh dimension.
struct PlacementRow {
  Placement param;       // stored, between uses
  Placement grad_micro;  // after each microbatch
  Placement grad;        // after the last microbatch
  Placement state;       // optimizer state and master weights
};

/// Return the table's row for the shard (inner) and the replicate (outer) dimension. A dimension of one rank
/// shards nothing.
PlacementRow inner_row(Strategy s, int ranks);
PlacementRow outer_row(Outer o, int ranks);

}  // namespace sherd
