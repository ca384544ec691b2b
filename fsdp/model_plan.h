// Plan of a whole model: its units' groups and buckets, the slots that units share, staging, and the sums.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sherd/fsdp/bucket_plan.h>
#include <sherd/fsdp/group_plan.h>

namespace sherd {

struct UnitPlan {
  std::string name;
  bool root = false;
  int height = 0;
  /// Its weights are resharded between forward and backward, and gathered a second time.
  bool gathers_twice = false;
  std::vector<GroupPlan> groups;
  /// Its slots in the model's tables (-1: none), and the space its groups take there, one after the other.
  int gather_slot = -1, gradient_slot = -1;
  int64_t gather_bytes = 0, gradient_elements = 0;
};

/// Allocations and traffic of the runtime for a model. Activations, optimizer states and the messages of
/// optimizers are not included; states are as large as cells (GroupPlan::cell_elements()).
struct ModelPlan {
  std::vector<UnitPlan> units;  // in the order given
  std::vector<BucketPlan> buckets;
  /// Buffers that units share, with `elements` of the largest user: bytes (u8) for weights of one or several
  /// dtypes, and f32 for gradients.
  std::vector<PlannedBuffer> gather_slots, gradient_slots;
  /// Shared by all groups: at most one for gathers, one for f32 and one for 16-bit reductions.
  std::vector<PlannedBuffer> staging;

  /// Returns the groups of all units, then those of the buckets.
  std::vector<const GroupPlan*> groups() const;
  /// Returns all separate allocations: the groups' buffers that are not ranges of a slot or of staging, the
  /// slots, and staging.
  std::vector<PlannedBuffer> allocations() const;
  /// Returns the bytes of the allocations on the device by class, as its allocator counts them.
  std::map<MemoryClass, int64_t> bytes() const;
  /// Returns the traffic of a step that uses every unit once in each microbatch.
  StepTraffic traffic(int microbatches = 1) const;
};

/// Calls plan_units() and plans the slots:
/// - The root, and a unit that is not resharded after forward, has a gather slot of its own. All others of
///   one height share prefetch + 1 slots in turn (at most one per unit). So a unit always gathers to the same
///   address.
/// - The root has a gradient slot of its own. All others of one height share two in turn, so that one unit's
///   gradients are reduced while the next are computed; without RootOptions::overlap_reduce they share one.
/// - Buckets whose gradients are unreduced at different times of a backward (backward_span()) share a slot. With
///   overlap_reduce a bucket does not share with one that may still be reduced while its first unit's gradients
///   are computed.
ModelPlan plan_model(const std::vector<PlanUnit>& units, const RootOptions& options = {});

}  // namespace sherd
