// Communicator whose ranks are threads of this process. They read each other's memory directly.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/comm/core/flight_options.h>

namespace sherd {

/// The world communicators of as many threads as there are devices, by rank. They share ownership of the
/// devices. All tensors they are given must stay mapped until every rank has synchronised its streams (the
/// launcher keeps all devices until then).
/// @throws InvalidArgument without a device or for timeout <= 0; as FlightRecorder's constructor.
std::vector<std::shared_ptr<Communicator>> make_local_world(std::span<const std::shared_ptr<Device>> devices,
                                                            std::chrono::milliseconds timeout,
                                                            const FlightRecorderOptions& recorder = {});

}  // namespace sherd
