// Plan of a bucket: Muon's matrices of several units in one buffer, their elements' places, and shared
// memory.
#pragma once

#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/fsdp/group_plan.h>

namespace sherd {

/// Group of parameters of several units. Each parameter is stored unsharded on one rank
/// (LayoutPolicy::whole_param). Buckets exist where weights are stored unsharded and states are split: under
/// optim and optim_grads on any number of ranks, and under no_shard with replicas that split the state. Where
/// weights are gathered for each use, each unit packs its own matrices.
///
/// A bucket is reduced when the backwards of all its units have ended; backwards of earlier units continue
/// meanwhile. Its new weights are gathered before the first of its units computes. Under optim the unreduced
/// gradient has a buffer of its own, as that of a unit's group. Under optim_grads a bucket holds unreduced
/// gradients in a slot, from the start of the first backward among its units to the reduction after the last
/// one. This takes more memory than a unit's group, and it grows with the bucket.
struct BucketPlan {
  /// params[i] is an index in PlanUnit::params of unit units[i]. `unit` is the bucket's own name, for example
  /// "bucket 2 (blocks.5 to blocks.3)".
  GroupPlan group;
  std::vector<int> units;  // by parameter of the layout
  int buffer = 0;          // index of the LayerWiseLayout that it is part of
  FullIndex begin;         // in the buffer
  /// Index in ModelPlan::gradient_slots; -1: none. Unknown before plan_model().
  int gradient_slot = -1;

  /// Returns the units, each once, in the expected order of their backwards.
  std::vector<int> members() const;
};

/// Returns the buckets of a model. Each dtype and each kind of unit (same mesh and sharding options) has one
/// LayerWiseLayout, in order of first use, with its buckets in backward order. Matrices are ordered as
/// follows: first the root's, whose backward ends last, then those of the other units, in each unit in order
/// of registration. A tied parameter has a bucket of its own, as in other layer-wise optimizers.
/// @throws InvalidArgument as LayerWiseLayout::make() does.
std::vector<BucketPlan> plan_buckets(const std::vector<PlanUnit>& units);

/// Interval in which a bucket's gradients are unreduced. Time is the count of units whose backward comes
/// before; the last unit except the root is expected first. @pre units in order of registration, modules
/// before those inside them, the root last.
struct BackwardSpan {
  int begin = 0, end = 0;  // both included
};
BackwardSpan backward_span(const BucketPlan& bucket, const std::vector<PlanUnit>& units);

}  // namespace sherd
