// Mapping of each call to NCCL's calls. Private to comm/nccl.
#pragma once

#include <string>

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/nccl/detail/handle.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::nccl {

/// Place where a call is issued: the worker of its stream.
struct Lane {
  Session& session;
  Handle& handle;
  ExecutionContext& context;
  int rank, size;
  const std::string& where;
  const Deadline& deadline;
};

/// Issues the call; `peer`: for send and recv. The ranks' calls agree.
void issue(const Lane& lane, comm::Verb verb, const comm::Call& call, int peer);

}  // namespace sherd::nccl
