// Hardware behind a device, by its driver.
#pragma once

#include <string>

#include <sherd/kernels/device/device.h>

namespace sherd {

struct Hardware {
  std::string name = {};  // "NVIDIA H200"
  std::string id = {};    // of this one; the same in every process that uses it
};

/// Returns the hardware of a CUDA device. Both strings are empty for a CPU, of which ranks have unknown parts.
[[nodiscard]] Hardware hardware_of(const Device& device);

}  // namespace sherd
