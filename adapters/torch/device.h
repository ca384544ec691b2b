// libtorch's name of a rank's device.
#pragma once

#include <c10/core/Device.h>

#include <sherd/kernels/device/device.h>

namespace sherd::torch {

/// Returns libtorch's device of a rank's device, for inputs of modules that are sharded over such devices:
///
///     const at::Device place = sherd::torch::device_of(*rank.device);
///     loss(model(batch.x.to(place)), batch.y.to(place)).backward();
at::Device device_of(const Device& device);

}  // namespace sherd::torch
