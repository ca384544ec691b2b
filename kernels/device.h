// Devices. The declarations are in device/device.h.
#pragma once

#include <sherd/kernels/device/device.h>  // IWYU pragma: export
