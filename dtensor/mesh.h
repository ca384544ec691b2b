// Named grid of ranks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd {

struct MeshDim {
  std::string name;
  int size = 1;
};

/// Ranks of a communicator arranged in a grid with named dimensions, last one innermost. With {{"replicate",
/// 2}, {"shard", 4}}, world rank r has coordinates (r / 4, r % 4). A cheap handle; copies share state.
class DeviceMesh {
 public:
  /// Makes one communicator per dimension. Collective over `world`.
  /// @throws InvalidArgument when sizes are < 1, names repeat or are empty, or the product is not
  /// world->size().
  DeviceMesh(std::shared_ptr<Communicator> world, std::vector<MeshDim> dims);

  const std::vector<MeshDim>& dims() const;
  bool has(std::string_view name) const;
  /// @throws InvalidArgument for an unknown name, listing the known ones (also the calls below).
  int size(std::string_view name) const;
  int coordinate(std::string_view name) const;
  /// Returns the total ranks in the mesh.
  int size() const;
  const std::shared_ptr<Communicator>& world() const;

  /// Returns the group of ranks that differ from this one only along `name`, ordered by that coordinate.
  const std::shared_ptr<Communicator>& comm(std::string_view name) const;
  /// Returns the group of ranks that differ from this one only along `names`; the first name is outermost in
  /// the order. Collective at the first request of a list, cached afterwards. An empty list gives a group of
  /// one rank.
  [[nodiscard]] std::shared_ptr<Communicator> flatten(const std::vector<std::string>& names) const;
  /// Returns the mesh of the named dimensions only, in this mesh's order; the other coordinates stay fixed.
  /// Collective.
  [[nodiscard]] DeviceMesh submesh(const std::vector<std::string>& names) const;
  /// Returns, for example, "replicate 2 x shard 4".
  std::string describe() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace sherd
