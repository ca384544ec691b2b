// Gather of a parameter, or of state of its shape, on one rank. Private to checkpoint/.
#pragma once

#include <vector>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// A box of a parameter, or of what is sharded like it, in row-major order: `local` is this rank's f32 piece at
/// shard_range(). World rank 0 gets it, all others get nothing. Collective; holds one copy of the box on rank
/// 0's device and two on its host, and where a rank's elements of it are in several runs, a copy of those on that
/// rank's device.
/// @param box of the whole parameter; of one without dimensions, of [1].
std::vector<float> gather_box(Stream& stream, const Parameter& p, const Tensor& local, const Box& box);

/// The whole of it.
std::vector<float> gather_whole(Stream& stream, const Parameter& p, const Tensor& local);

/// Rank 0 of the root's mesh gets wholes, so that it must be rank 0 of every other mesh, too.
/// @throws NotSupported naming `who` and the units whose meshes do not span the root's ranks in the same
/// order; InvalidArgument of ShardRuntime::require_whole_weights().
void require_same_ranks(ShardRuntime& runtime, const char* who);

}  // namespace sherd
