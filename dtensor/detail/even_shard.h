// Extents of evenly sharded tensors. Private to dtensor/.
#pragma once

#include <sherd/dtensor/dtensor.h>

namespace sherd {

/// @throws InvalidArgument, naming all offenders, for a wrong number of placements, a Shard of a dimension
/// that the tensor does not have, or a negative size.
void check_placements(const DeviceMesh& mesh, const Shape& global, const std::vector<Placement>& placements);

/// The piece of a tensor of shape `global` that this rank holds under `placements` (one per mesh dimension):
/// a scalar has no dimensions, an empty piece is at offset = size on the dimension that is empty.
Box even_shard(const DeviceMesh& mesh, const Shape& global, const std::vector<Placement>& placements);

}  // namespace sherd
