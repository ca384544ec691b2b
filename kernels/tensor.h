// Dense local tensors. The declarations are in device/tensor.h.
#pragma once

#include <sherd/kernels/device/tensor.h>  // IWYU pragma: export
