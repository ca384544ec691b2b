// Comparison of calls before they are made (NcclOptions::check_calls). Private to comm/nccl.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/nccl/detail/session.h>

namespace sherd::nccl {

/// Returns when every rank of the group has made the same call.
/// @throws CommError, the same text as the local backend's, when the calls differ or a rank does not come.
void check_collective(Session& session, const std::string& group, const std::vector<int>& world_ranks,
                      int rank, const comm::Call& call, const std::string& where, const Deadline& deadline);
/// Compares a send with its receive, between the two ranks. @throws as check_collective().
void check_message(Session& session, const std::string& group, const std::vector<int>& world_ranks, int rank,
                   int peer, bool sends, const comm::Call& call, const std::string& where,
                   const Deadline& deadline);

}  // namespace sherd::nccl
