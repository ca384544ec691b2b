#include <sherd/fsdp/slots.h>

#include <utility>

namespace sherd {

SlotPool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), slot_(std::exchange(other.slot_, -1)) {}

// Swaps: the lease that this one held ends with `other`.
SlotPool::Lease& SlotPool::Lease::operator=(Lease&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  return *this;
}

SlotPool::Lease::~Lease() {
  // Units end their leases themselves; an exception may leave one open.
  if (pool_ == nullptr) return;
  Event free;
  try {
    free = pool_->device_->compute().record();
  } catch (...) {  // the stream failed: it runs nothing more that could use the memory
  }
  end(free);
}

const Tensor& SlotPool::Lease::memory() const { return pool_->at(slot_).buffer; }

void SlotPool::Lease::end(const Event& free) {
  if (pool_ == nullptr) return;
  Slot& slot = pool_->at(slot_);
  slot.holder = -1;
  slot.free = free;
  pool_ = nullptr;
}

SlotPool::SlotPool(Device& device, DType dtype, MemoryClass kind, const char* name, SlotPlan plan,
                   std::vector<int64_t> elements_of)
    : device_(&device),
      dtype_(dtype),
      kind_(kind),
      name_(name),
      elements_of_(std::move(elements_of)),
      slot_of_(std::move(plan.slot_of)) {
  for (const int64_t n : plan.elements) slots_.push_back({n, {}, -1, {}});
}

std::vector<SlotPool::Buffer> SlotPool::buffers() {
  std::vector<Buffer> all;
  for (Slot& s : slots_) all.push_back({&s.buffer, {s.elements, dtype_, kind_, name_}});
  return all;
}

bool SlotPool::held(int unit) const {
  const int slot = slot_of(unit);
  return slot >= 0 && slots_[static_cast<size_t>(slot)].holder >= 0;
}

SlotPool::Lease SlotPool::acquire(int unit, Stream& stream) {
  int& mine = slot_of_[static_cast<size_t>(unit)];
  const int holder = at(mine).holder;
  // The holder does not release the slot: this unit gets a slot of its own from now on.
  if (holder >= 0 && !(give_back_ && give_back_(holder))) {
    const int64_t elements = elements_of_[static_cast<size_t>(unit)];
    // The allocation comes first: OutOfMemory leaves the pool unchanged. Operations queued on the compute
    // stream may still read memory that comes from the allocator.
    slots_.push_back({elements, Tensor::empty(*device_, {elements}, dtype_, kind_, name_), -1,
                      device_->compute().record()});
    // The unit keeps the slot for all later steps, so its address stays the same from here on.
    mine = static_cast<int>(slots_.size()) - 1;
  }
  // The new holder's first operations follow the previous holder's last ones; the host does not wait.
  stream.wait(at(mine).free);
  at(mine).holder = unit;
  return {*this, mine};
}

void SlotPool::forget_events() {
  for (Slot& s : slots_) s.free = {};
}

}  // namespace sherd
