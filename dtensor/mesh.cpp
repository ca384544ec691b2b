#include <sherd/dtensor/mesh.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {

struct DeviceMesh::Impl {
  std::shared_ptr<Communicator> world;
  std::vector<MeshDim> dims;
  std::vector<int> coordinates;
  std::vector<std::shared_ptr<Communicator>> comms;  // per dimension
  std::map<std::vector<std::string>, std::shared_ptr<Communicator>> flattened;

  std::string known() const {
    std::string s;
    for (const auto& d : dims) s += (s.empty() ? "" : ", ") + d.name;
    return s.empty() ? "none" : s;
  }

  size_t find(std::string_view name) const {
    for (size_t i = 0; i < dims.size(); ++i)
      if (dims[i].name == name) return i;
    throw InvalidArgument(fmt::format("mesh has no dimension '{}'; it has: {}", name, known()));
  }

  std::vector<size_t> find_all(const std::vector<std::string>& names) const {
    std::vector<size_t> found;
    for (const auto& name : names) {
      found.push_back(find(name));
      for (size_t i = 0; i + 1 < found.size(); ++i)
        if (found[i] == found.back())
          throw InvalidArgument(fmt::format("mesh dimension '{}' is named twice; name each once", name));
    }
    return found;
  }

  /// The ranks that agree with this one on all dimensions but `along`, ordered by those, the first outermost.
  std::shared_ptr<Communicator> split(const std::vector<size_t>& along) const {
    std::vector<int> strides(dims.size(), 1);
    for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i].size;
    int first = world->rank();
    for (size_t i : along) first -= coordinates[i] * strides[i];
    std::vector<int> ranks = {first};
    for (size_t i : along) {
      std::vector<int> more;
      for (const int rank : ranks)
        for (int k = 0; k < dims[i].size; ++k) more.push_back(rank + k * strides[i]);
      ranks = std::move(more);
    }
    return world->subgroup(ranks);
  }
};

DeviceMesh::DeviceMesh(std::shared_ptr<Communicator> world, std::vector<MeshDim> dims)
    : impl_(std::make_shared<Impl>()) {
  if (!world) throw InvalidArgument("DeviceMesh: the communicator is null");
  std::string bad;
  std::set<std::string> names;
  int64_t product = 1;
  for (const auto& d : dims) {
    if (d.size < 1)
      bad += fmt::format("\n  dimension '{}' has size {}; it must be at least 1", d.name, d.size);
    if (d.name.empty()) bad += "\n  a dimension has no name; name it";
    if (!names.insert(d.name).second)
      bad += fmt::format("\n  dimension '{}' is there twice; names must differ", d.name);
    product *= d.size;
  }
  if (product != world->size())
    bad += fmt::format("\n  the sizes multiply to {}, but the communicator has {} ranks", product,
                       world->size());
  if (!bad.empty()) throw InvalidArgument("DeviceMesh:" + bad);

  impl_->world = std::move(world);
  impl_->dims = std::move(dims);
  impl_->coordinates.resize(impl_->dims.size());
  int rank = impl_->world->rank();
  for (size_t i = impl_->dims.size(); i-- > 0; rank /= impl_->dims[i].size)
    impl_->coordinates[i] = rank % impl_->dims[i].size;
  for (size_t i = 0; i < impl_->dims.size(); ++i) impl_->comms.push_back(impl_->split({i}));
}

const std::vector<MeshDim>& DeviceMesh::dims() const { return impl_->dims; }

bool DeviceMesh::has(std::string_view name) const {
  return std::any_of(dims().begin(), dims().end(), [&](const MeshDim& d) { return d.name == name; });
}

int DeviceMesh::size(std::string_view name) const { return impl_->dims[impl_->find(name)].size; }

int DeviceMesh::coordinate(std::string_view name) const { return impl_->coordinates[impl_->find(name)]; }

int DeviceMesh::size() const { return impl_->world->size(); }

const std::shared_ptr<Communicator>& DeviceMesh::world() const { return impl_->world; }

const std::shared_ptr<Communicator>& DeviceMesh::comm(std::string_view name) const {
  return impl_->comms[impl_->find(name)];
}

std::shared_ptr<Communicator> DeviceMesh::flatten(const std::vector<std::string>& names) const {
  const std::vector<size_t> along = impl_->find_all(names);
  if (along.size() == 1) return impl_->comms[along[0]];
  auto& kept = impl_->flattened[names];
  if (!kept) kept = impl_->split(along);
  return kept;
}

DeviceMesh DeviceMesh::submesh(const std::vector<std::string>& names) const {
  std::vector<size_t> along = impl_->find_all(names);
  std::sort(along.begin(), along.end());
  std::vector<std::string> ordered;
  std::vector<MeshDim> kept;
  for (size_t i : along) {
    ordered.push_back(impl_->dims[i].name);
    kept.push_back(impl_->dims[i]);
  }
  return DeviceMesh(flatten(ordered), std::move(kept));
}

std::string DeviceMesh::describe() const {
  std::string s;
  for (const auto& d : dims()) s += fmt::format("{}{} {}", s.empty() ? "" : " x ", d.name, d.size);
  return s.empty() ? "one rank" : s;
}

}  // namespace sherd
