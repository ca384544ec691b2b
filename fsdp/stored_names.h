// Places of a module's parameters in files of other programs, with their names and divisions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sherd/dtensor/index.h>

namespace sherd {

/// A box of a parameter that is a box of a tensor in a file: the same elements in the same row-major order,
/// once dimensions of size 1 are left out. Both in global coordinates, whatever the parameter's shards are.
///
/// Examples: the fourth expert of a stack [8, hidden, d] whose experts are stored one by one is
/// {"...experts.3.up_proj.weight", {hidden, d}, Box of rows 3 to 4 of the parameter, Box of all of the
/// tensor}; the columns of k in a fused [d, 3 d] of which the parameter is [d, d] are a box that begins at
/// column d of the tensor.
struct StoredPiece {
  std::string tensor;          // full name in the file
  std::vector<int64_t> shape;  // of the whole tensor in the file
  Box in_parameter;
  Box in_tensor;
};

/// By the parameter's full name. A parameter that is not named here has one piece: all of it, under its own
/// name. The pieces of a parameter cover it once.
using StoredNames = std::map<std::string, std::vector<StoredPiece>>;

}  // namespace sherd
