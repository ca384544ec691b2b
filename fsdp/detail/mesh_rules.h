// Meaning of mesh dimensions for the parameters that are wrapped with them. Private to fsdp/.
#pragma once

#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/wrap.h>

namespace sherd {

/// Checks the meshes of all groups. Communicates nothing.
/// @throws InvalidArgument naming every parameter that is not its mesh's piece or is cut over a dimension
/// that its unit shards or reduces over, every dimension without a meaning for a unit
/// (FullyShardOptions::shard_dim), every mesh of another size than the root's, and every unit whose gradients
/// are averaged over the root's ranks where these are unknown (FullyShardOptions::gradient_ranks).
void check_meshes(const Wrap& root, const std::vector<ParamGroup*>& groups);

}  // namespace sherd
