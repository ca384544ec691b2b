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

/// Slots of one dtype on one device, which units (indices, as in the plan) hold in turn. One unit holds a
/// slot at a time. Events order a holder's operations after those of the previous one, so the host never
/// blocks. One rank's thread uses a pool. It must not move once a lease exists.
class SlotPool {
 public:
  /// Lease of a slot, held while a unit uses its buffer. The pool's destruction ends it at the latest.
  class [[nodiscard]] Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    /// Ends the lease after the operations queued on the compute stream.
    ~Lease();
    explicit operator bool() const { return pool_ != nullptr; }
    /// Returns the memory, of at least as many elements as the unit needs. Only queued operations read and
    /// write it.
    const Tensor& memory() const;
    /// Ends the lease: no operation uses the memory after `free`, and the next holder's stream waits for it.
    void end(const Event& free);

   private:
    friend class SlotPool;
    Lease(SlotPool& pool, int slot) : pool_(&pool), slot_(slot) {}
    SlotPool* pool_ = nullptr;
    int slot_ = -1;
  };

  /// Makes a pool without slots.
  SlotPool() = default;
  /// Makes a pool. `kind`, `name`: of the allocations. `elements_of`: the need of each unit, at most its
  /// slot's size.
  SlotPool(Device& device, DType dtype, MemoryClass kind, const char* name, SlotPlan plan,
           std::vector<int64_t> elements_of);

  /// Callback for a slot's holder when another unit requests the slot. It ends the holder's lease if the
  /// holder is not in use, and returns whether it did. Without one, no holder releases its slot.
  using GiveBack = std::function<bool(int holder)>;
  void set_give_back(GiveBack give_back) { give_back_ = std::move(give_back); }

  /// Memory that the caller puts at `memory` before the first acquire().
  struct Buffer {
    Tensor* memory;
    BufferSpec spec;
  };
  std::vector<Buffer> buffers();

  /// Returns whether the unit has a slot in this pool.
  bool has(int unit) const { return slot_of(unit) >= 0; }
  /// Returns whether any unit, this one or another, holds the unit's slot.
  bool held(int unit) const;
  /// Acquires the unit's slot for operations on `stream`, which waits until the slot is free. A holder that
  /// is not in use releases it. If the holder is in use, the unit gets and keeps a slot of its own. @pre
  /// has(unit), and it holds no slot.
  /// @throws OutOfMemory when a slot of its own does not fit; nothing has changed then.
  Lease acquire(int unit, Stream& stream);

  /// Drops the events of earlier uses: no stream waits for them any more. @pre no slot is held.
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
