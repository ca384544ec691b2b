#include <sherd/fsdp/model_plan.h>

#include <algorithm>
#include <utility>

#include <sherd/fsdp/slot_plan.h>

namespace sherd {
namespace {

// A table of slots: what they hold, and where a unit notes its own.
struct SlotTable {
  PlannedBuffer slot;  // but its elements and number
  int64_t UnitPlan::*elements;
  int UnitPlan::*number;
  int turns;  // slots that units of one height share
};

/// Assigns the units' buffers of one use to slots, which units at different times of a step share. Returns
/// the slots.
std::vector<PlannedBuffer> assign_slots(std::vector<UnitPlan>& units, const SlotTable& table) {
  const BufferUse use = table.slot.use;
  std::vector<SlotNeed> needs;
  for (UnitPlan& u : units) {
    for (const GroupPlan& g : u.groups)
      if (const PlannedBuffer* b = g.find(use))
        u.*table.elements += use == BufferUse::unsharded ? g.slot_bytes() : b->elements;
    // Weights that stay unsharded until backward must not be overwritten by other units meanwhile. Gradients
    // are reduced at the end of each backward, so their slots rotate.
    const bool shares = !u.root && (use == BufferUse::open_gradient || u.gathers_twice);
    needs.push_back({u.*table.elements, u.height, shares});
  }
  const SlotPlan assigned = plan_slots(needs, table.turns);
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].*table.number = assigned.slot_of[i];
    for (GroupPlan& g : units[i].groups)
      for (PlannedBuffer& b : g.buffers)
        if (b.use == use) b.slot = assigned.slot_of[i];
  }
  std::vector<PlannedBuffer> slots(assigned.elements.size(), table.slot);
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].elements = assigned.elements[i];
    slots[i].slot = static_cast<int>(i);
  }
  return slots;
}

// Slots of buckets, behind those of units.
void assign_bucket_slots(ModelPlan& plan, const std::vector<PlanUnit>& units, const PlannedBuffer& slot,
                         bool overlap) {
  std::vector<SlotSpan> users;
  for (const BucketPlan& b : plan.buckets) {
    const PlannedBuffer* open = b.group.find(slot.use);
    const BackwardSpan span = backward_span(b, units);
    // With overlap the reduction runs during the next unit's backward: one unit of time more.
    users.push_back({open != nullptr ? open->elements : 0, span.begin, span.end + (overlap ? 1 : 0)});
  }
  const SlotPlan assigned = plan_slots_in_time(users);
  const auto first = static_cast<int>(plan.gradient_slots.size());
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    if (assigned.slot_of[i] < 0) continue;
    plan.buckets[i].gradient_slot = first + assigned.slot_of[i];
    for (PlannedBuffer& b : plan.buckets[i].group.buffers)
      if (b.use == slot.use) b.slot = plan.buckets[i].gradient_slot;
  }
  for (const int64_t elements : assigned.elements) {
    plan.gradient_slots.push_back(slot);
    plan.gradient_slots.back().elements = elements;
    plan.gradient_slots.back().slot = static_cast<int>(plan.gradient_slots.size()) - 1;
  }
}

// One buffer for each use and dtype, as large as the largest request.
std::vector<PlannedBuffer> share_staging(const std::vector<const GroupPlan*>& groups) {
  std::vector<PlannedBuffer> shared;
  for (const GroupPlan* g : groups)
    for (auto& b : g->buffers) {
      if (b.use != BufferUse::gather_staging && b.use != BufferUse::reduce_staging) continue;
      auto it = std::find_if(shared.begin(), shared.end(),
                             [&](const PlannedBuffer& s) { return s.use == b.use && s.dtype == b.dtype; });
      if (it == shared.end()) it = shared.insert(shared.end(), b);
      it->elements = std::max(it->elements, b.elements);
    }
  std::sort(shared.begin(), shared.end(), [](const PlannedBuffer& a, const PlannedBuffer& b) {
    return std::pair(a.use, a.dtype) < std::pair(b.use, b.dtype);
  });
  return shared;
}

}  // namespace

std::vector<const GroupPlan*> ModelPlan::groups() const {
  std::vector<const GroupPlan*> all;
  for (auto& u : units)
    for (auto& g : u.groups) all.push_back(&g);
  for (auto& b : buckets) all.push_back(&b.group);
  return all;
}

// Buffers in slots and staging are listed once, as shared; all others belong to one group.
std::vector<PlannedBuffer> ModelPlan::allocations() const {
  std::vector<PlannedBuffer> all = gather_slots;
  all.insert(all.end(), gradient_slots.begin(), gradient_slots.end());
  all.insert(all.end(), staging.begin(), staging.end());
  for (const GroupPlan* g : groups())
    for (auto& b : g->buffers)
      if (b.slot < 0 && b.use != BufferUse::gather_staging && b.use != BufferUse::reduce_staging)
        all.push_back(b);
  return all;
}

std::map<MemoryClass, int64_t> ModelPlan::bytes() const {
  std::map<MemoryClass, int64_t> by_class;
  for (auto& b : allocations())
    if (b.place == Place::device) by_class[b.memory] += b.bytes();
  return by_class;
}

StepTraffic ModelPlan::traffic(int microbatches) const {
  StepTraffic t;
  for (auto& u : units)
    for (auto& g : u.groups) t += g.traffic(microbatches, u.gathers_twice ? 2 : 1);
  // Buckets store weights unsharded: one gather in a step, for any number of microbatches.
  for (auto& b : buckets) t += b.group.traffic(microbatches, 1);
  return t;
}

ModelPlan plan_model(const std::vector<PlanUnit>& units, const RootOptions& o) {
  ModelPlan plan;
  std::vector<std::vector<GroupPlan>> groups = plan_units(units);
  for (size_t i = 0; i < units.size(); ++i)
    plan.units.push_back({.name = units[i].name,
                          .root = units[i].root,
                          .height = units[i].height,
                          .gathers_twice = !units[i].root && units[i].options.reshard_after_forward,
                          .groups = std::move(groups[i])});
  plan.buckets = plan_buckets(units);
  const PlannedBuffer gathered{.use = BufferUse::unsharded,
                               .memory = MemoryClass::gathered,
                               .dtype = DType::u8,
                               .lifetime = Lifetime::unsharded};
  const PlannedBuffer gradient{.use = BufferUse::open_gradient,
                               .memory = MemoryClass::gradient,
                               .dtype = DType::f32,
                               .lifetime = Lifetime::backward};
  plan.gather_slots = assign_slots(plan.units, {gathered, &UnitPlan::gather_bytes, &UnitPlan::gather_slot,
                                                std::min(o.prefetch, static_cast<int>(units.size())) + 1});
  plan.gradient_slots = assign_slots(plan.units, {gradient, &UnitPlan::gradient_elements,
                                                  &UnitPlan::gradient_slot, o.overlap_reduce ? 2 : 1});
  assign_bucket_slots(plan, units, gradient, o.overlap_reduce);
  plan.staging = share_staging(plan.groups());
  return plan;
}

}  // namespace sherd
