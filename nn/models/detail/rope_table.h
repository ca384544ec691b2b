// Frequencies of rotary positions, shared by the layers of a model.
#pragma once

#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/nn/models/description.h>

namespace sherd::nn::detail {

/// Frequencies of rope() on the device, made when they are first asked for and then shared by all layers of a
/// model.
class RopeTable {
 public:
  /// Of positions that are learned: none.
  explicit RopeTable(const ModelDescription& model);
  bool rotary() const { return !frequencies_.empty(); }
  Tensor on(Device& device);

 private:
  std::vector<float> frequencies_;
  Tensor table_;
};

}  // namespace sherd::nn::detail
