// Counter-based random numbers. The declarations are in ops/random.h.
#pragma once

#include <sherd/kernels/random/random.h>  // IWYU pragma: export
