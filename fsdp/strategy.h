// Strategy table. A strategy is a row of placements.
#pragma once

#include <string>
#include <string_view>

#include <sherd/dtensor/placement.h>

namespace sherd {

/// ZeRO stages by what they shard (Rajbhandari et al. 2020): zero0, zero1, zero2, zero3.
///
/// At an equal number of data-parallel ranks all of them give the same bits, whatever the layout, Outer, and
/// the number of replicas (in shard groups of a power of two), as long as the gradient of a parameter comes
/// of one backward a step. Where it is the sum of several (microbatches, a unit called more than once), bits
/// agree inside a family and to rounding between families, for the order of summation differs:
///  - no_shard and optim, any number of replicas: each rank sums its own, then the ranks are summed;
///  - optim_grads and optim_grads_params with one number of replicas: each is summed over the shard group
///    when its backward ends, then those sums, then replicas. A shard group of one rank has nothing to
///    scatter and belongs to the first family. A matrix in a bucket that spans units (LayoutPolicy::whole_param)
///    is summed when the backwards of all its units have ended: the same, but for a unit that a hand-written
///    backward runs several times in one microbatch, which agrees to rounding.
/// A 16-bit FullyShardOptions::reduce_dtype rounds in the shard group: bits then agree with equal replicas
/// only.
enum class Strategy { no_shard, optim, optim_grads, optim_grads_params };

/// What HSDP's outer dimension shards: nothing, or the optimizer state too.
enum class Outer { no_shard, optim };

/// "no_shard" ... "optim_grads_params", or the aliases "zero0" ... "zero3".
/// @throws InvalidArgument listing the legal names.
Strategy parse_strategy(std::string_view name);
Outer parse_outer(std::string_view name);
const char* name_of(Strategy s);
const char* name_of(Outer o);

/// Placements of a group's flat buffers along one mesh dimension.
struct PlacementRow {
  Placement param;       // at rest, between uses
  Placement grad_micro;  // after each microbatch
  Placement grad;        // after the last microbatch
  Placement state;       // optimizer state and fp32 master weights
};

/// The table, for the shard (inner) and the replicate (outer) dimension. A dimension of one rank shards
/// nothing.
PlacementRow inner_row(Strategy s, int ranks);
PlacementRow outer_row(Outer o, int ranks);

}  // namespace sherd
