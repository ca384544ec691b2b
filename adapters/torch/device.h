// A rank's device as libtorch names it.
#pragma once

#include <c10/core/Device.h>

#include <sherd/kernels/device/device.h>

namespace sherd::torch {

/// The device of libtorch's for inputs of modules that are sharded over ranks with such devices:
///
///     const at::Device place = sherd::torch::device_of(*rank.device);
///     loss(model(batch.x.to(place)), batch.y.to(place)).backward();
at::Device device_of(const Device& device);

}  // namespace sherd::torch
