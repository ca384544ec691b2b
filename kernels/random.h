// Random numbers and values. The declarations are in random/random.h.
#pragma once

#include <sherd/kernels/random/random.h>  // IWYU pragma: export
