// Check that all ranks have wrapped the same model.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/fsdp/buffer.h>
#include <sherd/fsdp/group.h>

namespace sherd {

/// Compares lists of units, parameters and buffers as text, before they are made: ranks that make different
/// communicators would wait for each other. Collective; queues on `stream` and blocks the host.
/// @throws RanksDiffer on every rank, "<otherwise>: rank 1 (...) differs from the others (...); the first
/// difference: rank 1 has unit 'blocks.0' ..., rank 0 has parameter 'blocks.0.up.weight' ...".
void check_wraps(Communicator& comm, Stream& stream, const std::vector<std::string>& lines,
                 const std::string& otherwise);

/// Compares all traits of the groups and the descriptions of the buffers. Collective; queues on `stream` and
/// blocks the host.
/// @throws ShapeMismatch on every rank, "<otherwise>: rank 1 (...) differs from the others (...) in the
/// initial values of parameter 'head.weight'", unless all ranks agree.
void check_alike(Communicator& comm, Stream& stream, const std::vector<ParamGroup*>& groups,
                 const std::vector<Buffer>& buffers, const std::string& otherwise);

}  // namespace sherd
