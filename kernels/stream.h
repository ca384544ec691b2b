// Streams and events. The declarations are in device/stream.h.
#pragma once

#include <sherd/kernels/device/stream.h>  // IWYU pragma: export
