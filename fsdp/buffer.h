// Buffer: values of a model that are kept and not trained, such as tables and running statistics.
#pragma once

#include <memory>
#include <string>

#include <sherd/fsdp/init.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

class ModuleBase;
class ShardRuntime;
void assign_names(ModuleBase& root);

/// Handle of a buffer; copies refer to the same buffer. ModuleBase::buffer() makes it as a description only.
/// fully_shard() of the root allocates its memory as MemoryClass::buffer, and the root's destruction frees
/// it. One rank's thread uses it.
///
/// Every rank has all elements, in the buffer's own dtype. Nothing keeps the ranks' values equal: they are
/// equal while all ranks write the same values (as for tables). Statistics of a rank's own batches differ:
/// see set_per_rank(). Persistent buffers are saved, exported and loaded under their full names beside the
/// parameters. World rank 0's values are saved, and loading gives them to all ranks.
class Buffer {
 public:
  Buffer() = default;
  /// Same as ModuleBase::buffer(), without a module.
  Buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent);

  /// Returns the full name in the module tree (the local name until the root is sharded).
  const std::string& name() const { return state().name; }
  const Shape& shape() const { return state().shape; }
  int64_t numel() const { return numel_of(state().shape); }
  DType dtype() const { return state().dtype; }
  const Init& init() const { return state().init; }
  /// Returns whether it is part of checkpoints, exports and state dicts.
  bool persistent() const { return state().persistent; }
  /// Declares that each rank writes its own values, such as statistics of its batches. check_replicas() then
  /// skips the buffer. Call it on every rank, at any time.
  Buffer& set_per_rank() {
    state().per_rank = true;
    return *this;
  }
  bool per_rank() const { return state().per_rank; }

  /// Returns the values. Operations on the device's compute stream read and write them.
  /// @throws InvalidArgument before fully_shard() of the root, and after the root was destroyed.
  Tensor data() const;

  bool defined() const { return state_ != nullptr; }
  friend bool operator==(const Buffer& a, const Buffer& b) { return a.state_ == b.state_; }

 private:
  friend class ModuleBase;
  friend class ShardRuntime;
  friend void assign_names(ModuleBase& root);
  struct State {
    std::string name;
    Shape shape;
    DType dtype = DType::f32;
    Init init;
    bool persistent = true;
    bool per_rank = false;
    Tensor data = {};
  };
  State& state() const;
  /// Allocates memory of the stream's device and queues the first values.
  void allocate(Stream& stream, uint64_t seed);

  std::shared_ptr<State> state_;
};

}  // namespace sherd
