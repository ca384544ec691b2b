// Memory of libtorch's tensors, counted by a rank's device.
#pragma once

#include <memory>

#include <sherd/kernels/device/device.h>

namespace sherd::torch {

/// While it lives, what libtorch allocates on this thread on the CPU (activations, their gradients, temporaries) is
/// memory of `device`'s allocator, of MemoryClass::activation: its reports and its limit include it, and blocks are
/// kept for the next step's tensors of the same sizes. Of libtorch's own allocator, that is the C library's, each step
/// gets them anew from the system, which clears every page first.
///
///     sherd::launch(4, [&](sherd::RankContext& rank) {
///       const sherd::torch::DeviceMemory memory(rank.device);   // first: before the model
///
/// Tensors may outlive it, and may be freed on any thread; they keep the device. Other threads are not concerned,
/// those of libtorch's pools neither, which allocate nothing that stays. Scopes nest; each ends on the thread that
/// began it.
class DeviceMemory {
 public:
  /// @throws NotSupported for a GPU: what libtorch has there is its own caching allocator's, and not counted.
  explicit DeviceMemory(std::shared_ptr<Device> device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Device>* const around_;  // of the scope around this one
};

}  // namespace sherd::torch
