// Plan of a unit's parameter groups: members, places of elements, buffers and bytes. It is computed from
// names, shapes and options, without a device. The runtime builds its ParamGroups from this plan; `sherd
// layout`, planners and tests read the same one.
#pragma once

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

/// A parameter as planning sees it.
struct PlanParam {
  std::string name;
  Shape shape;  // of this rank's piece where it is cut from a larger one (TensorShard)
  CutClass cut = CutClass::element;
  RowBlocks row_blocks = {};  // Parameter::row_blocks()
  bool trainable = true;
  bool ignored = false;      // FullyShardOptions::ignored
  DType dtype = DType::f32;  // in which it is gathered and computed with
  bool tied = false;         // several modules hold it
};

/// The parameters that one fully_shard() call claims, with its mesh and options.
struct PlanUnit {
  std::string name;
  std::vector<PlanParam> params;  // in the order in which modules registered them
  std::vector<MeshAxis> mesh;
  FullyShardOptions options = {};
  /// LayoutOptions::rotation: the wrapped module's number among all but the root, whose is their count.
  int position = 0;
  bool root = false;
  /// Levels of units inside of it.
  int height = 0;
  /// Numbers the shard groups of ranks: units of one number carry their ranks' costs on to each other.
  int ranks_id = 0;
  /// LayoutOptions::align.
  int64_t align = 64;
};

/// Why parameters of one unit are in different groups.
enum class GroupKind {
  whole,   // LayoutPolicy::whole_param: CutClass::row ones, of which none is cut (in_bucket(): of several units)
  cut,     // all other trainable ones
  frozen,  // no gradient
};

/// What a buffer holds.
enum class BufferUse {
  rest,            // weights between uses: this rank's part, or all of them where they rest whole
  resident,        // LayoutPolicy::even_rows, where weights rest whole: the contiguous parameters
  master,          // fp32 weights, this rank's cell, where `rest` is not fp32 itself
  whole_gradient,  // the sum over microbatches, where gradients stay whole between them
  gradient_part,   // the reduced gradient, where it does not lie in whole_gradient
  unsharded,       // a unit's gathered weights (its group's range of the unit's slot)
  open_gradient,   // a unit's gradient during its backward (range of the unit's gradient slot)
  gather_staging,  // shared by all groups: what is gathered and then unpacked
  reduce_staging,  // shared by all groups: what is packed or cast and then reduced, f32 or 16 bits
};

/// How long what a buffer holds is needed.
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
  /// Number of the slot that it is a range of (ModelPlan::gather_slots or gradient_slots); -1: memory of its
  /// own. Not known before plan_model().
  int slot = -1;

  /// What the allocation is called in memory tables.
  const char* name() const;
  /// As the allocator counts an allocation of this size.
  int64_t bytes() const;
};

/// Payload that one rank receives in a step, in bytes as Communicator::counts() has them.
struct StepTraffic {
  int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  StepTraffic& operator+=(const StepTraffic& other);
  bool operator==(const StepTraffic&) const = default;
};

/// One flat buffer, its layout, and what else it needs.
struct GroupPlan {
  std::string unit;  // its name; of a bucket (bucket_plan.h) the bucket's
  GroupKind kind = GroupKind::cut;
  bool ignored = false;
  DType dtype = DType::f32;       // of the weights at rest and gathered
  DType wire_dtype = DType::f32;  // of gradients in the shard group's reductions
  std::vector<int> params;        // as index in PlanUnit::params, in that order
  ShardAxes axes;
  std::shared_ptr<const ShardLayout> layout;  // its parameter p is params[p]
  std::vector<PlannedBuffer> buffers;

  bool trainable() const { return kind != GroupKind::frozen; }
  /// The full buffer is not the communication buffer: collectives go through staging memory.
  bool staged() const { return !layout->zero_copy() && axes.world() > 1; }
  /// Whole weights exist in a gather slot only; the same of gradients and the gradient slot.
  bool needs_slot() const { return axes.inner.param.is_shard(); }
  bool needs_gradient_slot() const { return trainable() && axes.inner.grad_micro.is_shard(); }
  bool stages_reduce() const { return trainable() && (staged() || wire_dtype != DType::f32); }

  /// Elements of the buffer in which all parameters are whole. Never 0: parameters without elements are
  /// views, too.
  int64_t full_elements() const;
  /// What the group takes of its unit's gather slot, whose groups may be of several dtypes: bytes, a multiple of what
  /// keeps the next group's collectives aligned.
  int64_t slot_bytes() const;
  /// Elements of the communication buffer.
  int64_t buffer_elements() const { return layout->buffer_elements(); }
  /// This rank's share of the communication buffer among the shard group: [part_begin, part_begin +
  /// part_elements).
  int64_t part_elements() const;
  int64_t part_begin() const;
  /// This rank's share of that part among the replicas, counted from the part's begin. It has the layout's
  /// slice of elements; optimizer states are as large, without its padding.
  int64_t cell_begin() const;
  int64_t cell_elements() const { return layout->slice(); }

  /// Null when the group has none of this use.
  const PlannedBuffer* find(BufferUse use) const;
  /// For messages, behind the unit's name: ", frozen", ", whole matrices" or "".
  const char* suffix() const;

  /// Of a step that uses the unit once in each microbatch. @param gathers unshard() calls in a microbatch
  /// that find the weights sharded: 2 when they are resharded between forward and backward, else 1.
  StepTraffic traffic(int microbatches, int gathers) const;
};

/// The buffers of a group whose other members are known.
std::vector<PlannedBuffer> buffers_of(const GroupPlan& group);

/// Whether a parameter of the unit lies in a bucket, which may hold those of other units as well, and not in a group of
/// the unit: LayoutPolicy::whole_param never cuts it, and the strategy has weights rest whole, but splits the state.
bool in_bucket(const PlanUnit& unit, const PlanParam& param);

/// Under LayoutPolicy::whole_param a unit has few matrices, so that the ranks' costs are carried on from unit
/// to unit and ties go to the rank with less. By PlanUnit::ranks_id and the layout's world.
using CarriedCost = std::map<std::pair<int, int>, std::vector<double>>;

/// The groups of one unit: first those of the parameters that take part, then those of the ignored ones; in
/// each, by kind, and by dtype in order of first use. A kind without parameters makes no group; what is
/// in_bucket() is in none.
/// @throws InvalidArgument as ShardLayout::make() does.
std::vector<GroupPlan> plan_groups(const PlanUnit& unit, CarriedCost& carried);

/// The groups of all units of a model, in the order given. Costs are carried on in the order of backward:
/// from the last unit to the first, then the root. @throws as plan_groups().
std::vector<std::vector<GroupPlan>> plan_units(const std::vector<PlanUnit>& units);

}  // namespace sherd
