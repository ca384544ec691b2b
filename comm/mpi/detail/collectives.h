// Data movement of each call once its ranks have met. Private to comm/mpi.
#pragma once

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/mpi/detail/member.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::mpi {

/// Runs the call, on the worker of its stream: meets the others, moves the data, reduces. `peer`: for send
/// and recv.
/// @throws CommError as Communicator says.
void run(Member& member, comm::Verb verb, const comm::Call& call, int peer, ExecutionContext& context);

}  // namespace sherd::mpi
