// Communicator whose ranks are threads of this process. They read each other's memory directly.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <sherd/comm/communicator.h>

namespace sherd {

/// The world communicators of `ranks` threads, by rank. All tensors they are given must stay mapped until
/// every rank has synchronised its streams (the launcher keeps all devices until then).
/// @throws InvalidArgument when ranks < 1 or timeout <= 0.
std::vector<std::shared_ptr<Communicator>> make_local_world(int ranks, std::chrono::milliseconds timeout);

}  // namespace sherd
