// Counter-based random numbers. The declarations are in ops/random.h.
#pragma once

#include <sherd/kernels/ops/random.h>  // IWYU pragma: export
