// Brings a parameter, or state of its shape, together on one rank. Private to checkpoint/.
#pragma once

#include <vector>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// The whole of a parameter, or of what is sharded like it: `local` is this rank's f32 piece at
/// shard_range(). World rank 0 gets it, all others get nothing. Collective; holds one copy on rank 0's device
/// and two on its host.
std::vector<float> gather_whole(Stream& stream, const Parameter& p, const Tensor& local);

/// Rank 0 of the root's mesh gets wholes, so that it must be rank 0 of every other mesh, too.
/// @throws NotSupported naming `who` and the units whose meshes do not span the root's ranks in the same
/// order.
void require_same_ranks(ShardRuntime& runtime, const char* who);

}  // namespace sherd
