#include <sherd/fsdp/shard_axes.h>

#include <algorithm>
#include <utility>

namespace sherd {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Several dimensions as one.
struct Flattened {
  std::vector<std::string> names;
  int ranks = 1, index = 0;
};

/// Numbers the ranks of several dimensions row by row, in the order of `names`. Dimensions that the mesh
/// lacks count as one rank.
Flattened flatten(const std::vector<MeshAxis>& mesh, const std::vector<std::string>& names) {
  Flattened f;
  for (auto& name : names) {
    const auto axis =
        std::find_if(mesh.begin(), mesh.end(), [&](const MeshAxis& a) { return a.name == name; });
    if (axis == mesh.end()) continue;
    f.names.push_back(name);
    f.ranks *= axis->size;
    f.index = f.index * axis->size + axis->coordinate;
  }
  return f;
}

std::vector<std::string> with_cut(std::vector<std::string> dims, const std::optional<TensorShard>& cut) {
  if (cut && cut->parts > 1) dims.push_back(cut->mesh_dim);
  return dims;
}

}  // namespace

ShardAxes ShardAxes::of(std::vector<MeshAxis> mesh, const FullyShardOptions& o, bool ignored) {
  if (ignored) return of(std::move(mesh), {}, {}, o.strategy, o.outer);
  std::vector<std::string> shard = {o.shard_dim};
  if (o.shares_sequences(o.context_dim)) shard.push_back(o.context_dim);
  return of(std::move(mesh), shard, {o.replicate_dim}, o.strategy, o.outer, o.gradient_ranks);
}

ShardAxes ShardAxes::of(std::vector<MeshAxis> mesh, const std::vector<std::string>& shard,
                        const std::vector<std::string>& replicate, Strategy strategy, Outer outer_strategy,
                        int gradient_ranks) {
  ShardAxes a;
  Flattened inner = flatten(mesh, shard), outer = flatten(mesh, replicate);
  a.mesh = std::move(mesh);
  a.shard_ranks = inner.ranks;
  a.shard_index = inner.index;
  a.replicate_ranks = outer.ranks;
  a.replicate_index = outer.index;
  a.inner = inner_row(strategy, inner.ranks);
  a.outer = outer_row(outer_strategy, outer.ranks);
  // Ranks along other dimensions compute on the same data and are not counted.
  a.divisor = gradient_ranks > 0 ? gradient_ranks : inner.ranks * outer.ranks;
  a.shard = std::move(inner.names);
  a.replicate = std::move(outer.names);
  // The dimensions over which a kind of value is sharded: inner ones first.
  const auto split = [&](Placement PlacementRow::*what) {
    std::vector<std::string> names;
    // Shard group outermost: a part is contiguous, and replicas cut it into cells.
    if ((a.inner.*what).is_shard()) names = a.shard;
    if ((a.outer.*what).is_shard()) names.insert(names.end(), a.replicate.begin(), a.replicate.end());
    return names;
  };
  a.weights_split = split(&PlacementRow::param);
  a.gradient_split = split(&PlacementRow::grad);
  a.state_split = split(&PlacementRow::state);
  for (auto* list : {&a.shard, &a.replicate})
    for (auto& name : *list)
      if (!contains(a.state_split, name) && flatten(a.mesh, {name}).ranks > 1)
        a.state_repeated.push_back(name);
  return a;
}

std::vector<std::string> ShardAxes::others() const {
  std::vector<std::string> names;
  for (auto& axis : mesh)
    if (axis.size > 1 && !contains(shard, axis.name) && !contains(replicate, axis.name))
      names.push_back(axis.name);
  return names;
}

int ShardAxes::world() const { return flatten(mesh, state_split).ranks; }

int ShardAxes::cell() const { return flatten(mesh, state_split).index; }

std::vector<std::string> ShardAxes::spread_over(const std::optional<TensorShard>& cut) const {
  return with_cut(state_split, cut);
}

// Ranks with equal coordinates along all other dimensions hold the same piece; `index` numbers them.
Holders ShardAxes::holders_of(std::vector<std::string> split, const std::optional<TensorShard>& cut) const {
  const std::vector<std::string> spread = with_cut(std::move(split), cut);
  Holders h;
  for (auto& axis : mesh) {
    if (contains(spread, axis.name)) continue;
    h.dims.push_back(axis.name);
    h.index = h.index * axis.size + axis.coordinate;
    h.count *= axis.size;
  }
  return h;
}

}  // namespace sherd
