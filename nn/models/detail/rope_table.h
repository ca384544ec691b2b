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
  /// @param rope of these layers. Of positions that are learned: no frequencies.
  RopeTable(const ModelDescription& model, const RopeDescription& rope);
  bool rotary() const { return !frequencies_.empty(); }
  /// Returns the factor of cosines and sines: RopeScaling::rotation_scale() and query_scalar; of latent
  /// attention, which scales them itself, too.
  float scale() const { return scale_; }
  /// @param positions that the forward's sequences have, those in a cache included
  Tensor on(Device& device, int64_t positions);

 private:
  std::vector<std::vector<float>> frequencies_;  // of short and, where they differ, of long sequences
  std::vector<Tensor> tables_;
  RopeScaling scaling_;
  float scale_ = 1;
};

}  // namespace sherd::nn::detail
