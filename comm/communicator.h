// Collectives among the ranks of a group. The declarations are in core/communicator.h.
#pragma once

#include <sherd/comm/core/communicator.h>  // IWYU pragma: export
