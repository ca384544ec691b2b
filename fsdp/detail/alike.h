// Check that all ranks have wrapped the same model.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/fsdp/buffer.h>
#include <sherd/fsdp/group.h>

namespace sherd {

/// The same of lists of units, parameters and buffers in words, before anything is made of them: ranks that make different
/// communicators would wait for each other. @throws RanksDiffer on every rank, "<otherwise>: rank 1 (...) differs from the
/// others (...); the first difference: rank 1 has unit 'blocks.0' ..., rank 0 has parameter 'blocks.0.up.weight' ...".
/// Collective; queues on `stream` and blocks the host.
void check_wraps(Communicator& comm, Stream& stream, const std::vector<std::string>& lines,
                 const std::string& otherwise);

/// @throws ShapeMismatch on every rank, "<otherwise>: rank 1 (...) differs from the others (...) in the initial
/// values of parameter 'head.weight'", unless the groups are alike in all their traits, and
/// the buffers in what describes them. Collective; queues on
/// `stream` and blocks the host.
void check_alike(Communicator& comm, Stream& stream, const std::vector<ParamGroup*>& groups,
                 const std::vector<Buffer>& buffers, const std::string& otherwise);

}  // namespace sherd
