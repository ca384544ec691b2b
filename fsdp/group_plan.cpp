#include <sherd/fsdp/group_plan.h>

#include <algorithm>
#include <array>

#include <sherd/fsdp/layout_param.h>
#include <sherd/kernels/device/allocator.h>

namespace sherd {
namespace {

// Returns the group that the parameter needs. Frozen ones are apart: their group has no gradient buffers and
// no reduction.
GroupKind kind_of(const PlanParam& p, LayoutPolicy policy) {
  if (!p.trainable) return GroupKind::frozen;
  return policy == LayoutPolicy::whole_param && p.cut == CutClass::row ? GroupKind::whole : GroupKind::cut;
}

std::shared_ptr<const ShardLayout> make_layout(const PlanUnit& unit, const GroupPlan& g,
                                               CarriedCost& carried) {
  const FullyShardOptions& o = unit.options;
  std::vector<LayoutParam> described;
  for (const int i : g.params) {
    const PlanParam& p = unit.params[static_cast<size_t>(i)];
    described.push_back(layout_param(p.name, p.shape, p.cut, p.row_blocks));
    described.back().granule = p.granule;
  }
  const int world = g.axes.world();
  LayoutOptions options{.policy = o.layout,
                        .packing = o.packing,
                        .align = unit.align,
                        .padding_budget = o.padding_budget,
                        .rotation = unit.position,
                        .carried_cost = {},
                        .order_by_carried_cost = true};
  // Only the matrices of GroupKind::whole must not be cut; ragged splits the others by elements.
  if (options.policy == LayoutPolicy::whole_param && g.kind != GroupKind::whole)
    options.policy = LayoutPolicy::ragged;
  // Ignored parameters are on every rank, whatever it has else.
  const bool carries = options.policy == LayoutPolicy::whole_param && !g.ignored;
  if (carries) options.carried_cost = carried[{unit.ranks_id, world}];
  auto layout = std::make_shared<ShardLayout>(ShardLayout::make(std::move(described), world, options));
  if (carries) carried[{unit.ranks_id, world}] = layout->rank_cost();
  return layout;
}

}  // namespace

std::vector<PlannedBuffer> buffers_of(const GroupPlan& g) {
  std::vector<PlannedBuffer> all;
  const auto add = [&](BufferUse use, MemoryClass memory, DType dtype, int64_t elements, Lifetime lifetime) {
    all.push_back({use, memory, dtype, elements, lifetime});
  };
  const bool staged = g.staged(), in_parts = g.needs_slot();
  // Staged weights that are stored unsharded are contiguous in `resident`; their communication buffer is
  // staging.
  const bool rests = in_parts || !staged;
  if (rests)
    add(BufferUse::rest, MemoryClass::parameter, g.dtype, in_parts ? g.part_elements() : g.buffer_elements(),
        Lifetime::training);
  if (!rests)
    add(BufferUse::resident, MemoryClass::parameter, g.dtype, g.full_elements(), Lifetime::training);
  // Weights that rest in the masters' dtype are their own masters.
  if (!rests || g.dtype != g.master_dtype())
    add(BufferUse::master, MemoryClass::master, g.master_dtype(), g.cell_elements(), Lifetime::training);
  if (g.master == Master::split)
    add(BufferUse::master_low, MemoryClass::master, DType::bf16, g.cell_elements(), Lifetime::training);
  for (PlannedBuffer& b : all)
    if (b.memory == MemoryClass::master) b.place = g.master_place;
  if (in_parts)
    add(BufferUse::unsharded, MemoryClass::gathered, g.dtype, g.full_elements(), Lifetime::unsharded);
  if (g.staged())
    add(BufferUse::gather_staging, MemoryClass::message, g.dtype, g.buffer_elements(), Lifetime::collective);
  if (!g.trainable()) return all;
  if (g.needs_gradient_slot())
    add(BufferUse::open_gradient, MemoryClass::gradient, DType::f32, g.open_elements(), Lifetime::backward);
  const bool whole = g.stored_gradient().placement.is_partial();
  if (whole)
    add(BufferUse::whole_gradient, MemoryClass::gradient, g.grad_dtype, g.full_elements(), Lifetime::step);
  // Otherwise the part is a range of the unreduced gradient.
  if (!whole || staged)
    add(BufferUse::gradient_part, MemoryClass::gradient, g.grad_dtype, g.part_elements(), Lifetime::step);
  if (g.stages_reduce())
    add(BufferUse::reduce_staging, MemoryClass::message, g.wire_dtype, g.buffer_elements(),
        Lifetime::collective);
  return all;
}

namespace {

// Traffic of redistribute_flat() for these placements; `full` elements over `ranks`, one slice for each.
StepTraffic moved(Placement from, Placement to, int ranks, int64_t full, DType dtype) {
  StepTraffic t;
  if (ranks == 1 || from == to) return t;
  // Counted as in the communicators: (n - 1) / n of the buffer per rank, 2x that for an all-reduce (a ring).
  const int64_t others = full / ranks * (ranks - 1);
  if (from.is_shard()) {
    t.all_gather = others * size_of(dtype);
  } else if (to.is_shard()) {
    t.reduce_scatter = others * size_of(dtype);
  } else {
    t.all_reduce = (2 * full * (ranks - 1) + ranks - 1) / ranks * size_of(dtype);
  }
  return t;
}

}  // namespace

const char* PlannedBuffer::name() const {
  switch (use) {
    case BufferUse::rest:
    case BufferUse::resident:
      return "parameters";
    case BufferUse::master:
    case BufferUse::master_low:
      return "master weights";
    case BufferUse::whole_gradient:
    case BufferUse::gradient_part:
      return "gradients";
    case BufferUse::unsharded:
      return "unsharded parameters";
    case BufferUse::open_gradient:
      return "unsharded gradients";
    case BufferUse::gather_staging:
    case BufferUse::reduce_staging:
      return "staging";
  }
  return "";
}

int64_t PlannedBuffer::bytes() const { return Allocator::rounded(elements * size_of(dtype)); }

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  all_gather += other.all_gather;
  reduce_scatter += other.reduce_scatter;
  all_reduce += other.all_reduce;
  return *this;
}

int64_t GroupPlan::full_elements() const {
  return staged() ? std::max<int64_t>(1, layout->full_elements()) : layout->buffer_elements();
}

int64_t GroupPlan::slot_bytes() const {
  // Groups of several dtypes share a slot: each starts at a multiple of 128 bytes.
  constexpr int64_t kAlign = 128;
  return (full_elements() * size_of(dtype) + kAlign - 1) / kAlign * kAlign;
}

int64_t GroupPlan::part_elements() const {
  return buffer_elements() / (axes.inner.state.is_shard() ? axes.shard_ranks : 1);
}

int64_t GroupPlan::part_begin() const {
  return axes.inner.state.is_shard() ? axes.shard_index * part_elements() : 0;
}

int64_t GroupPlan::cell_begin() const {
  return axes.outer.state.is_shard() ? axes.replicate_index * cell_elements() : 0;
}

const PlannedBuffer* GroupPlan::find(BufferUse use) const {
  const auto it = std::find_if(buffers.begin(), buffers.end(), [&](auto& b) { return b.use == use; });
  return it == buffers.end() ? nullptr : &*it;
}

const char* GroupPlan::suffix() const {
  return kind == GroupKind::frozen ? ", frozen" : kind == GroupKind::whole ? ", whole matrices" : "";
}

StepTraffic GroupPlan::traffic(int microbatches, int gathers) const {
  StepTraffic t;
  const PlacementRow &in = axes.inner, &out = axes.outer;
  const auto inner = [&](Placement from, Placement to, DType type) {
    return moved(from, to, axes.shard_ranks, buffer_elements(), type);
  };
  // New weights reach their storage once a step, and are gathered from there for every use.
  // Replicas gather first, as ParamGroup::publish().
  t += moved(out.state, out.param, axes.replicate_ranks, part_elements(), dtype);
  if (!needs_slot()) t += inner(in.state, in.param, dtype);
  for (int i = 0; needs_slot() && i < microbatches * gathers; ++i) t += inner(in.param, Replicate(), dtype);
  if (!trainable()) return t;
  for (int i = 0; i < microbatches; ++i) {
    const bool last = i + 1 == microbatches;
    // Partial to Partial moves nothing: no_shard and optim reduce in the last microbatch only.
    t += inner(Partial(), last ? in.grad : in.grad_micro, wire_dtype);
  }
  return t += moved(out.grad_micro, out.grad, axes.replicate_ranks, part_elements(), DType::f32);
}

bool in_bucket(const PlanUnit& unit, const PlanParam& p) {
  if (p.ignored || kind_of(p, unit.options.layout) != GroupKind::whole) return false;
  // The same on one rank as on many: the table's row for two ranks decides.
  const PlacementRow many = inner_row(unit.options.strategy, 2);
  return many.param.is_replicate() &&
         (many.state.is_shard() || ShardAxes::of(unit.mesh, unit.options).outer.state.is_shard());
}

std::vector<GroupPlan> plan_groups(const PlanUnit& unit, CarriedCost& carried) {
  std::vector<GroupPlan> groups;
  // The order of groups is the order of collectives and of ranges in slots: it depends on the arguments
  // alone.
  for (const bool ignored : {false, true}) {
    for (const GroupKind kind : {GroupKind::whole, GroupKind::cut, GroupKind::frozen}) {
      const size_t first = groups.size();
      for (size_t i = 0; i < unit.params.size(); ++i) {
        const PlanParam& p = unit.params[i];
        if (p.ignored != ignored || kind_of(p, unit.options.layout) != kind || in_bucket(unit, p)) continue;
        // One group for each dtype, form and place of masters of the kind.
        auto g = std::find_if(groups.begin() + static_cast<std::ptrdiff_t>(first), groups.end(),
                              [&](const GroupPlan& other) {
                                return other.dtype == p.dtype && other.master == p.master &&
                                       other.master_place == p.master_place;
                              });
        if (g == groups.end())
          g = groups.insert(groups.end(), GroupPlan{.unit = unit.name,
                                                    .kind = kind,
                                                    .ignored = ignored,
                                                    .dtype = p.dtype,
                                                    .master = p.master,
                                                    .master_place = p.master_place});
        g->params.push_back(static_cast<int>(i));
      }
      for (size_t k = first; k < groups.size(); ++k) {
        GroupPlan& g = groups[k];
        g.axes = ShardAxes::of(unit.mesh, unit.options, ignored);
        // The reduced dtype is used only where gradients travel within a shard group.
        if (g.axes.shard_ranks > 1) g.wire_dtype = unit.options.reduce_dtype;
        if (!ignored && g.trainable()) g.grad_dtype = unit.options.grad_dtype;
        g.layout = make_layout(unit, g, carried);
        g.buffers = buffers_of(g);
      }
    }
  }
  return groups;
}

std::vector<std::vector<GroupPlan>> plan_units(const std::vector<PlanUnit>& units) {
  std::vector<std::vector<GroupPlan>> groups(units.size());
  CarriedCost carried;
  // Costs are carried in backward order: from the last unit to the first, then the root.
  for (const bool root : {false, true})
    for (size_t i = units.size(); i-- > 0;)
      if (units[i].root == root) groups[i] = plan_groups(units[i], carried);
  return groups;
}

}  // namespace sherd
