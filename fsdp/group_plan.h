// Plan of a unit's parameter groups: members, places of elements, buffers and bytes. It is computed from
// names, shapes and options, without a device. The runtime builds its ParamGroups from this plan; `sherd
// layout`, planners and tests read the same one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/options.h>
#include <sherd/fsdp/row_blocks.h>
#include <sherd/fsdp/shard_axes.h>
#include <sherd/kernels/device/memory_class.h>

namespace sherd {

/// Parameter as planning uses it.
struct PlanParam {
  std::string name;
  Shape shape;  // of this rank's piece if it is cut from a larger one (TensorShard)
  CutClass cut = CutClass::element;
  RowBlocks row_blocks = {};  // Parameter::row_blocks()
  bool trainable = true;
  bool ignored = false;         // RootOptions::ignored
  DType dtype = DType::f32;     // in which it is gathered and computed with
  bool tied = false;            // several modules hold it
  Master master = Master::f32;  // f32 where dtype is f32
  Place master_place = Place::device;
  int64_t granule = 1;  // LayoutParam::granule
};

/// Parameters that one fully_shard() call claims, with its mesh and options.
struct PlanUnit {
  std::string name;
  std::vector<PlanParam> params;  // in order of registration
  std::vector<MeshAxis> mesh;
  FullyShardOptions options = {};
  /// LayoutOptions::rotation: index of the wrapped module among all except the root; the root's is their
  /// count.
  int position = 0;
  bool root = false;
  /// Levels of units inside it.
  int height = 0;
  /// Id of the shard group's set of ranks. Units with equal ids share the accumulated costs of their ranks.
  int ranks_id = 0;
  /// LayoutOptions::align.
  int64_t align = 64;
};

/// Reason for a group of its own within a unit.
enum class GroupKind {
  whole,   // LayoutPolicy::whole_param: CutClass::row parameters, never cut (in_bucket(): of several units)
  cut,     // all other trainable parameters
  frozen,  // no gradient
};

/// Content of a buffer.
enum class BufferUse {
  rest,            // weights between uses: this rank's part, or all of them where they are stored unsharded
  resident,        // LayoutPolicy::even_rows with weights stored unsharded: the contiguous parameters
  master,          // weights that the optimizer updates, this rank's cell, where they are not in `rest`
  master_low,      // low 16 bits of these, where the form is split
  whole_gradient,  // sum over microbatches, where gradients stay unreduced between them
  gradient_part,   // reduced gradient, where it is not in whole_gradient
  unsharded,       // a unit's gathered weights (its group's range of the unit's slot)
  open_gradient,   // a unit's gradient during its backward (range of the unit's gradient slot)
  gather_staging,  // shared by all groups: gathered data before unpacking
  reduce_staging,  // shared by all groups: packed or cast data before reduction, f32 or 16 bits
};

/// Form of weights or gradients in the shard group.
struct Form {
  Placement placement;
  DType dtype;
  bool operator==(const Form&) const = default;
};

/// Time for which a buffer's content is needed.
enum class Lifetime {
  training,    // as long as the model
  step,        // from the first backward of a step to its update
  unsharded,   // from unshard() to reshard()
  backward,    // from pre_backward() until the reduction is done
  collective,  // one gather or reduction
};

struct PlannedBuffer {
  BufferUse use = BufferUse::rest;
  MemoryClass memory = MemoryClass::parameter;
  DType dtype = DType::f32;
  int64_t elements = 0;
  Lifetime lifetime = Lifetime::training;
  Place place = Place::device;
  /// Index of the slot that it is a range of (ModelPlan::gather_slots or gradient_slots); -1: memory of its
  /// own. Unknown before plan_model().
  int slot = -1;

  /// Returns the allocation's name in memory tables.
  const char* name() const;
  /// Returns the bytes that the allocator counts for this size.
  int64_t bytes() const;
};

/// Payload that one rank receives in a step, in bytes as counted by Communicator::counts().
struct StepTraffic {
  int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  StepTraffic& operator+=(const StepTraffic& other);
  bool operator==(const StepTraffic&) const = default;
};

/// One flat buffer, its layout, and its further buffers.
struct GroupPlan {
  std::string unit;  // name of the unit, or of the bucket (bucket_plan.h)
  GroupKind kind = GroupKind::cut;
  bool ignored = false;
  DType dtype = DType::f32;     // of the stored and gathered weights
  Master master = Master::f32;  // form of the weights that the optimizer updates
  Place master_place = Place::device;
  DType wire_dtype = DType::f32;  // of gradients in the shard group's reductions
  DType grad_dtype = DType::f32;  // of gradients between microbatches and after the last
  std::vector<int> params;        // as index in PlanUnit::params, in that order
  ShardAxes axes;
  std::shared_ptr<const ShardLayout> layout;  // its parameter p is params[p]
  std::vector<PlannedBuffer> buffers;

  bool trainable() const { return kind != GroupKind::frozen; }
  /// Returns whether the full buffer is not the communication buffer, so that collectives use staging memory.
  bool staged() const { return !layout->zero_copy() && axes.world() > 1; }
  /// Return the form of weights between uses and in use, and of gradients between microbatches and in backward.
  Form stored_weights() const { return {axes.inner.param, dtype}; }
  Form used_weights() const { return {Replicate(), dtype}; }
  Form stored_gradient() const { return {axes.inner.grad_micro, grad_dtype}; }
  Form open_gradient() const { return {Partial(), DType::f32}; }
  /// Returns the dtype of the weights that the optimizer updates.
  DType master_dtype() const { return master == Master::f32 ? DType::f32 : dtype; }
  /// Returns whether weights (gradients) in use are in a gather (gradient) slot: their stored form is another one.
  bool needs_slot() const { return stored_weights() != used_weights(); }
  bool needs_gradient_slot() const { return trainable() && stored_gradient() != open_gradient(); }
  bool stages_reduce() const { return trainable() && (staged() || wire_dtype != DType::f32); }

  /// Returns the elements of the buffer with all parameters unsharded. Never 0: parameters without elements
  /// are views, too.
  int64_t full_elements() const;
  /// Returns the elements of the gradient slot, which has room for the rank's part of a sum in 16 bits, too.
  int64_t open_elements() const {
    return grad_dtype == DType::f32 ? full_elements() : std::max(full_elements(), part_elements());
  }
  /// Returns the group's bytes in its unit's gather slot, whose groups may have several dtypes. It is rounded
  /// up so that the next group's collectives stay aligned.
  int64_t slot_bytes() const;
  /// Returns the elements of the communication buffer.
  int64_t buffer_elements() const { return layout->buffer_elements(); }
  /// Return this rank's share of the communication buffer in the shard group: [part_begin, part_begin +
  /// part_elements).
  int64_t part_elements() const;
  int64_t part_begin() const;
  /// Return this rank's share of that part among the replicas, counted from the part's start. It has the
  /// layout's slice of elements. Optimizer states have the same size, without its padding.
  int64_t cell_begin() const;
  int64_t cell_elements() const { return layout->slice(); }

  /// Returns the buffer of this use, or null.
  const PlannedBuffer* find(BufferUse use) const;
  /// Returns the suffix of the unit's name in messages: ", frozen", ", whole matrices" or "".
  const char* suffix() const;

  /// Returns the traffic of a step that uses the unit once in each microbatch. @param gathers unshard() calls
  /// in a microbatch that find the weights sharded: 2 when they are resharded between forward and backward,
  /// else 1.
  StepTraffic traffic(int microbatches, int gathers) const;
};

/// Returns the buffers of a group whose other members are known.
std::vector<PlannedBuffer> buffers_of(const GroupPlan& group);

/// Returns whether a parameter of the unit is in a bucket, which several units may share, and not in a group
/// of the unit. This holds when LayoutPolicy::whole_param never cuts it, and the strategy stores weights
/// unsharded but splits the state.
bool in_bucket(const PlanUnit& unit, const PlanParam& param);

/// Accumulated costs of ranks, by PlanUnit::ranks_id and the layout's world. Under LayoutPolicy::whole_param
/// a unit has few matrices, so costs are carried from unit to unit, and ties go to the rank with less.
using CarriedCost = std::map<std::pair<int, int>, std::vector<double>>;

/// Returns the groups of one unit: first those of ordinary parameters, then those of ignored ones; in each by
/// kind, and by dtype in order of first use. A kind without parameters makes no group. Parameters with
/// in_bucket() are in none.
/// @throws InvalidArgument as ShardLayout::make() does.
std::vector<GroupPlan> plan_groups(const PlanUnit& unit, CarriedCost& carried);

/// Returns the groups of all units of a model, in the order given. Costs are carried in the order of
/// backward: from the last unit to the first, then the root. @throws as plan_groups().
std::vector<std::vector<GroupPlan>> plan_units(const std::vector<PlanUnit>& units);

}  // namespace sherd
