// Places of a module's parameters in files of other programs, with their names and divisions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sherd/dtensor/index.h>

namespace sherd {

/// A box of a parameter that is a box of a tensor in a file: the same elements in the same row-major order,
/// once dimensions of size 1 are left out. Both are in global coordinates, independent of the parameter's
/// shards.
///
/// Examples: a stack of experts [8, hidden, d] whose experts are stored one by one. The fourth expert is
/// {"...experts.3.up_proj.weight", {hidden, d}, Box of rows 3 to 4 of the parameter, Box of the whole
/// tensor}. For the columns of k, a parameter [d, d], in a fused tensor [d, 3 d], in_tensor is a box that
/// begins at column d.
struct StoredPiece {
  std::string tensor;          // full name in the file
  std::vector<int64_t> shape;  // of the whole tensor in the file
  Box in_parameter;
  Box in_tensor;
  /// Elements of in_tensor are this far apart along the last dimension, which is a multiple of it (interleaved columns).
  int64_t step = 1;
};

/// Stored pieces by the parameter's full name. A parameter without an entry has one piece: all of it, under
/// its own name. The pieces of a parameter cover it exactly once.
using StoredNames = std::map<std::string, std::vector<StoredPiece>>;

}  // namespace sherd
