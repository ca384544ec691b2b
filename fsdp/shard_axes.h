// Mesh dimensions that split or replicate a parameter's weights, gradient and optimizer state. Arithmetic on
// names and sizes, without a device or another rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sherd/fsdp/options.h>
#include <sherd/fsdp/strategy.h>
#include <sherd/fsdp/tensor_shard.h>

namespace sherd {

/// A mesh dimension with one rank's coordinate along it.
struct MeshAxis {
  std::string name;
  int size = 1;
  int coordinate = 0;
};

/// Ranks that hold the same elements of a parameter.
struct Holders {
  std::vector<std::string> dims;  // mesh dimensions along which they differ, in the mesh's order
  int count = 1;
  int index = 0;  // this rank's index among them, the last dimension running fastest; 0 is the first copy
};

/// Meaning of a mesh's dimensions for one group of parameters under one strategy.
///
/// Two lists of dimensions are data-parallel: the *shard group* (inner; the shard and the context dimension) and the *replicas* (outer). Each is
/// flattened to one dimension with its first name outermost. The strategy table says what each of the two
/// splits. Data split over both is cut into parts over the shard group first, and each part into cells over
/// the replicas. All other dimensions split only parameters that were cut over them before (TensorShard), and
/// replicate the rest.
///
/// Example: {replicate 2, shard 4, tp 2} under Strategy::optim with Outer::optim. Weights are stored
/// unsharded: weights_split is empty. Gradient and state are split over {shard, replicate}, so the layout has
/// world() = 8 cells. The rank at (1, 2, 0) has cell() = 2 * 2 + 1 = 5, and the rank at (1, 2, 1) holds the
/// same cell (holders_of() counts 2 for a parameter that is not cut over tp). A gradient is averaged over
/// divisor = 8 ranks.
struct ShardAxes {
  /// Returns the axes of a group of parameters.
  /// @param mesh all dimensions, in order, with this rank's coordinates.
  /// @param ignored RootOptions::ignored parameters: nothing is split or reduced.
  static ShardAxes of(std::vector<MeshAxis> mesh, const FullyShardOptions& options, bool ignored = false);
  /// Returns the same for lists of dimensions. Names that the mesh does not have are left out.
  /// @param gradient_ranks FullyShardOptions::gradient_ranks
  static ShardAxes of(std::vector<MeshAxis> mesh, const std::vector<std::string>& shard,
                      const std::vector<std::string>& replicate, Strategy strategy, Outer outer_strategy,
                      int gradient_ranks = 0);

  std::vector<MeshAxis> mesh;
  std::vector<std::string> shard, replicate;  // the two lists, outermost first, including dimensions of one
                                              // rank
  int shard_ranks = 1, replicate_ranks = 1;
  int shard_index = 0, replicate_index = 0;  // of this rank
  PlacementRow inner, outer;                 // rows of the strategy table for the two

  /// Dimensions over which data is split, outermost of the layout first: stored weights between uses,
  /// gradients after the last microbatch, optimizer state and master weights.
  std::vector<std::string> weights_split, gradient_split, state_split;
  /// Data-parallel dimensions of more than one rank along which the state is replicated, shard group first.
  std::vector<std::string> state_repeated;
  /// Ranks whose batches a gradient is averaged over.
  int divisor = 1;

  /// Returns the dimensions of more than one rank that are not data-parallel, in the mesh's order. Their ranks
  /// compute the gradients of parameters that are not cut over them each for itself.
  std::vector<std::string> others() const;
  /// Returns the number of ranks of the layout: those over which the state is split.
  int world() const;
  /// Returns this rank's index among them.
  int cell() const;
  /// Returns the dimensions over which the elements of a parameter's gradient and state are sharded:
  /// state_split, and the dimension over which the parameter is cut (in more than one piece).
  std::vector<std::string> spread_over(const std::optional<TensorShard>& cut) const;
  /// Returns the ranks that hold the same elements of the parameter's state as this rank.
  Holders holders_of(const std::optional<TensorShard>& cut) const { return holders_of(state_split, cut); }
  /// Returns the same for data that is split over other dimensions, such as weights_split.
  Holders holders_of(std::vector<std::string> split, const std::optional<TensorShard>& cut) const;
};

}  // namespace sherd
