// Meaning of mesh dimensions for the parameters that are wrapped with them. Private to fsdp/.
#pragma once

#include <vector>

#include <sherd/fsdp/group.h>

namespace sherd {

/// @throws InvalidArgument naming every parameter that is not the piece its mesh says or is cut over a
/// dimension its unit shards or reduces over, every dimension that means nothing to a unit
/// (FullyShardOptions::shard_dim), and every mesh of another size than the root's. Communicates nothing.
void check_meshes(const DeviceMesh& root, const std::vector<ParamGroup*>& groups);

}  // namespace sherd
