// Operations on tensors. The declarations are in ops/ops.h.
#pragma once

#include <sherd/kernels/ops/ops.h>  // IWYU pragma: export
