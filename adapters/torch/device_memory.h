// Memory of libtorch's tensors, counted by a rank's device.
#pragma once

#include <memory>

#include <sherd/kernels/device/device.h>

namespace sherd::torch {

/// Scope in which libtorch's memory of this thread on the CPU (activations, their gradients, temporaries)
/// comes from `device`'s allocator, as MemoryClass::activation. The allocator's reports and limit include it,
/// and blocks are kept for the next step's tensors of the same sizes. libtorch's own allocator is the C
/// library's: each step gets new blocks from the system, which clears every page first.
///
///     sherd::launch(4, [&](sherd::RankContext& rank) {
///       const sherd::torch::DeviceMemory memory(rank.device);   // first: before the model
///
/// Tensors may outlive it, and may be freed on any thread; they keep the device. Other threads are not
/// affected. Neither are those of libtorch's pools, which allocate only temporaries. Scopes nest; each ends
/// on the thread that began it.
class DeviceMemory {
 public:
  /// @throws NotSupported for a GPU: libtorch's memory there is in its own caching allocator, and is not
  /// counted.
  explicit DeviceMemory(std::shared_ptr<Device> device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Device>* const around_;  // of the enclosing scope
};

}  // namespace sherd::torch
