// Slots: buffers that units use in turn, for unsharded parameters and for unreduced gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/core/buffers.h>
#include <sherd/fsdp/slot_plan.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Slots of one dtype on one device, which units (numbers, as in the plan) hold in turn. A slot is held by
/// one unit at a time; events order the work of a holder behind that of the one before, so nobody blocks. One
/// rank's thread uses a pool; it does not move once a lease has been given.
class SlotPool {
 public:
  /// Held by a unit as long as its buffer is in use. Ended at the latest when the pool goes.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    /// Ends it behind what is queued on the compute stream.
    ~Lease();
    explicit operator bool() const { return pool_ != nullptr; }
    /// At least as many elements as the unit needs. Memory is written and read by queued work only.
    const Tensor& memory() const;
    /// Nobody reads or writes the memory after `free`; the stream of the next holder waits for it.
    void end(const Event& free);

   private:
    friend class SlotPool;
    Lease(SlotPool& pool, int slot) : pool_(&pool), slot_(slot) {}
    SlotPool* pool_ = nullptr;
    int slot_ = -1;
  };

  /// Without slots.
  SlotPool() = default;
  /// `kind`, `name`: of the allocations. `elements_of`: what each unit needs, at most what its slot has.
  SlotPool(Device& device, DType dtype, MemoryClass kind, const char* name, SlotPlan plan,
           std::vector<int64_t> elements_of);

  /// Told which unit holds a slot that another asks for: ends that unit's lease if the unit is not in use,
  /// and says whether it has. Without one, no holder gives its slot up.
  using GiveBack = std::function<bool(int holder)>;
  void set_give_back(GiveBack give_back) { give_back_ = std::move(give_back); }

  /// What the caller puts at `memory` before the first acquire().
  struct Buffer {
    Tensor* memory;
    BufferSpec spec;
  };
  std::vector<Buffer> buffers();

  /// Whether the unit has a slot here.
  bool has(int unit) const { return slot_of(unit) >= 0; }
  /// Whether any unit, this one or another, holds the unit's slot.
  bool held(int unit) const;
  /// The unit's slot, for work that will be queued on `stream`, which waits until the slot is free. A unit
  /// that has it and is not in use gives it back; while that is in use, the unit gets a slot of its own,
  /// which it keeps. The unit has a slot, and holds none.
  /// @throws OutOfMemory when there is no room for a slot of its own; nothing has changed then.
  Lease acquire(int unit, Stream& stream);

  /// Nothing that was queued before is waited for any more. No slot is held.
  void forget_events();

 private:
  struct Slot {
    int64_t elements;
    Tensor buffer;
    int holder = -1;
    Event free;
  };
  int slot_of(int unit) const {
    return unit < static_cast<int>(slot_of_.size()) ? slot_of_[static_cast<size_t>(unit)] : -1;
  }
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }

  Device* device_ = nullptr;
  DType dtype_ = DType::f32;
  MemoryClass kind_ = MemoryClass::gathered;
  const char* name_ = "";
  std::vector<int64_t> elements_of_;  // by unit
  std::vector<int> slot_of_;
  std::vector<Slot> slots_;
  GiveBack give_back_;
};

}  // namespace sherd
