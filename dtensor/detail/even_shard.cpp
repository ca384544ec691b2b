#include <sherd/dtensor/detail/even_shard.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {

EvenChunk even_chunk(int64_t n, int parts, int index) {
  if (n < 0 || parts < 1 || index < 0 || index >= parts)
    throw InvalidArgument(
        fmt::format("even_chunk: chunk {} of {} of {} elements does not exist", index, parts, n));
  const int64_t chunk = (n + parts - 1) / parts;
  const int64_t begin = std::min(index * chunk, n), end = std::min(begin + chunk, n);
  return {begin, end - begin};
}

void check_placements(const DeviceMesh& mesh, const Shape& global, const std::vector<Placement>& placements) {
  std::string bad;
  if (placements.size() != mesh.dims().size())
    bad += fmt::format("\n  {} placements for a mesh of {} dimensions; give one for each", placements.size(),
                       mesh.dims().size());
  for (const Placement& p : placements)
    if (p.is_shard() && (p.dim < 0 || p.dim >= static_cast<int>(global.size())))
      bad += fmt::format("\n  {} of a tensor with {} dimensions; shard one of those", to_string(p),
                         global.size());
  for (int64_t n : global)
    if (n < 0) bad += fmt::format("\n  size {} is negative", n);
  if (!bad.empty())
    throw InvalidArgument(fmt::format("DTensor of shape {} with placements {} on mesh {}:{}",
                                      to_string(global), to_string(placements), mesh.describe(), bad));
}

Box even_shard(const DeviceMesh& mesh, const Shape& global, const std::vector<Placement>& placements) {
  Box box{Shape(global.size(), 0), global};
  for (size_t i = placements.size(); i-- > 0;) {  // the innermost mesh dimension cuts first
    if (!placements[i].is_shard()) continue;
    const MeshDim& dim = mesh.dims()[i];
    const auto d = static_cast<size_t>(placements[i].dim);
    const EvenChunk c = even_chunk(box.size[d], dim.size, mesh.coordinate(dim.name));
    box.offset[d] += c.offset;
    box.size[d] = c.size;
  }
  for (size_t d = 0; d < global.size(); ++d)
    if (box.size[d] == 0) box.offset[d] = global[d];
  return box;
}

}  // namespace sherd
