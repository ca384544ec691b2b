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

/// A handle; copies mean the same buffer. Made by ModuleBase::buffer(), described only: memory comes with
/// fully_shard() of the root, as MemoryClass::buffer, and goes with the root. Used by one rank's thread.
///
/// Every rank has the whole of it, in its own dtype, and nothing keeps the ranks' values equal: they are equal as
/// long as all write the same (tables do). Statistics of a rank's own batches differ: see set_per_rank(). Persistent buffers are
/// saved, exported and loaded under their full names beside the parameters; what is saved is world rank 0's,
/// and loading gives that to all.
class Buffer {
 public:
  Buffer() = default;
  /// As ModuleBase::buffer(), of no module.
  Buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent);

  /// Full name in the module tree (the local name until the root is sharded).
  const std::string& name() const { return state().name; }
  const Shape& shape() const { return state().shape; }
  int64_t numel() const { return numel_of(state().shape); }
  DType dtype() const { return state().dtype; }
  const Init& init() const { return state().init; }
  /// Whether it is part of checkpoints, exports and state dicts.
  bool persistent() const { return state().persistent; }
  /// Declares that each rank writes values of its own, such as statistics of its batches: check_replicas() leaves the
  /// buffer out. The same on every rank, at any time.
  Buffer& set_per_rank() {
    state().per_rank = true;
    return *this;
  }
  bool per_rank() const { return state().per_rank; }

  /// The values; work on the device's compute stream reads and writes them.
  /// @throws InvalidArgument before fully_shard() of the root, and when the root is gone.
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
  /// Takes memory of the stream's device and queues the first values.
  void allocate(Stream& stream, uint64_t seed);

  std::shared_ptr<State> state_;
};

}  // namespace sherd
