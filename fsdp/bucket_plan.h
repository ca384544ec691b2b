// Plan of a bucket: Muon's matrices of several units in one buffer, their elements' places, and shared
// memory.
#pragma once

#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/fsdp/group_plan.h>

namespace sherd {

/// A group of parameters of several units, all of them whole on one rank each (LayoutPolicy::whole_param). It
/// exists where weights rest whole and states are split all the same: under optim and optim_grads, on one
/// rank as on many, and under no_shard with replicas that split the state. Where weights are gathered for
/// each use, units pack theirs by themselves.
///
/// It is reduced when the backwards of all its units have ended, while those of the units before them go on,
/// and its new weights are gathered before the first of them computes. Under optim the whole gradient rests
/// in a buffer of its own, as that of a unit's group does. Under optim_grads a bucket holds whole gradients,
/// in a slot, from the begin of the first backward among its units to the reduction behind the last one: more
/// than a unit's group holds, the more the larger buckets are.
struct BucketPlan {
  /// Its params[i] is an index in PlanUnit::params of unit units[i]; its `unit` is the bucket's own name,
  /// "bucket 2 (blocks.5 to blocks.3)".
  GroupPlan group;
  std::vector<int> units;  // by parameter of the layout
  int buffer = 0;          // number of the LayerWiseLayout that it is part of
  FullIndex begin;         // in the buffer
  /// In ModelPlan::gradient_slots; -1: none. Not known before plan_model().
  int gradient_slot = -1;

  /// The units, each once, in the order in which their backwards are expected.
  std::vector<int> members() const;
};

/// The buckets of a model: one LayerWiseLayout for each dtype and each kind of unit (of one mesh and the same
/// options of sharding), in order of first use, and its buckets in backward order. A model's matrices are in
/// this order: first the root's, whose backward ends last, then those of the other units, in each as modules
/// registered them. A tied parameter has a bucket of its own, as it has in the field's layer-wise optimizers.
/// @throws InvalidArgument as LayerWiseLayout::make() does.
std::vector<BucketPlan> plan_buckets(const std::vector<PlanUnit>& units);

/// When a bucket's gradients are whole, in numbers of units whose backward has come before: that of the last
/// unit but the root is expected first. @pre units in the order of registration, modules before those inside
/// them, the root last.
struct BackwardSpan {
  int begin = 0, end = 0;  // both included
};
BackwardSpan backward_span(const BucketPlan& bucket, const std::vector<PlanUnit>& units);

}  // namespace sherd
