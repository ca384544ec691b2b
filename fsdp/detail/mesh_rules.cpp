#include <sherd/fsdp/detail/mesh_rules.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string>

#include <sherd/fsdp/detail/unit_claims.h>

namespace sherd {
namespace {

bool cut_over(const Parameter& p, const std::string& dim) {
  return p.tensor_shard() && p.tensor_shard()->parts > 1 && p.tensor_shard()->mesh_dim == dim;
}

// "'a', 'b' and 3 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("'{}'", fmt::join(std::span(names).first(shown), "', '"));
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

void check_tensor_shards(const ParamGroup& g, std::vector<std::string>& wrong) {
  const DeviceMesh& mesh = g.mesh();
  const FullyShardOptions& o = g.options();
  for (auto& p : g.params()) {
    if (!p.tensor_shard()) continue;
    const TensorShard& t = *p.tensor_shard();
    if (t.parts == 1) {
      // The only piece of a dimension that the mesh leaves out, while the mesh has ranks that compute on the
      // same data elsewhere: each of these sees its own part of the rows, and no collective would sum its
      // gradients over them.
      if (!mesh.has(t.mesh_dim) && mesh.has(o.tensor_dim) && mesh.size(o.tensor_dim) > 1)
        wrong.push_back(
            fmt::format("'{}' is the one piece over mesh dimension '{}', but its mesh '{}' has no such "
                        "dimension, and {} ranks of "
                        "'{}': wrap it on a mesh of its own, so that its gradients are summed over them",
                        p.name(), t.mesh_dim, mesh.describe(), mesh.size(o.tensor_dim), o.tensor_dim));
      continue;
    }
    if (mesh.has(t.mesh_dim) && o.averages_over(t.mesh_dim)) {
      wrong.push_back(
          fmt::format("'{}' is piece {} of {} over mesh dimension '{}', which is the {} dimension "
                      "of unit '{}' as well: gradients of different pieces would be summed",
                      p.name(), t.index, t.parts, t.mesh_dim,
                      t.mesh_dim == o.shard_dim        ? "shard"
                      : o.shares_sequences(t.mesh_dim) ? "context"
                                                       : "replicate",
                      g.unit_of(p.index_in_group())));
      continue;
    }
    if (mesh.has(t.mesh_dim) && mesh.size(t.mesh_dim) == t.parts && mesh.coordinate(t.mesh_dim) == t.index)
      continue;
    wrong.push_back(fmt::format(
        "'{}' is piece {} of {} over mesh dimension '{}', but {}", p.name(), t.index, t.parts, t.mesh_dim,
        !mesh.has(t.mesh_dim) ? fmt::format("its mesh '{}' has no such dimension", mesh.describe())
                              : fmt::format("this is rank {} of {} along it", mesh.coordinate(t.mesh_dim),
                                            mesh.size(t.mesh_dim))));
  }
}

// A dimension that means nothing to some units, whose options name the other two so.
struct Stray {
  int size = 1;
  std::string shard_dim, replicate_dim, context_dim;
  bool tensor = false;
  std::vector<std::string> units = {}, params = {};
};

// Keys: the dimension and the other names in the options.
using Strays = std::map<std::array<std::string, 5>, Stray>;

// Collects dimensions along which the group's ranks would train different models: no reduction spans them,
// and parameters are not cut over them.
void find_strays(const ParamGroup& g, const std::set<std::string>& cut_anywhere, Strays& strays) {
  const FullyShardOptions& o = g.options();
  for (const MeshDim& d : g.mesh().dims()) {
    if (d.size == 1 || o.averages_over(d.name)) continue;
    const bool tensor = d.name == o.tensor_dim;
    std::vector<std::string> whole, units;
    for (auto& p : g.params()) {
      const std::string& unit = g.unit_of(p.index_in_group());
      if ((tensor || !cut_over(p, d.name)) && (units.empty() || units.back() != unit)) units.push_back(unit);
      if (!cut_over(p, d.name)) whole.push_back(p.name());
    }
    if (tensor ? cut_anywhere.contains(d.name) : whole.empty()) continue;
    Stray& stray = strays
                       .try_emplace({d.name, o.shard_dim, o.replicate_dim, o.context_dim, o.tensor_dim},
                                    Stray{d.size, o.shard_dim, o.replicate_dim, o.context_dim, tensor})
                       .first->second;
    for (auto& unit : units)
      if (std::find(stray.units.begin(), stray.units.end(), unit) == stray.units.end())
        stray.units.push_back(unit);
    stray.params.insert(stray.params.end(), whole.begin(), whole.end());
  }
}

std::string describe(const std::string& dim, const Stray& s) {
  const std::string units = (s.units.size() == 1 ? "unit " : "units ") + listed(s.units);
  if (s.tensor)
    return fmt::format(
        "mesh dimension '{}' of {} ranks is the tensor dimension of {}, but no parameter of the model "
        "is cut over it",
        dim, s.size, units);
  return fmt::format(
      "mesh dimension '{}' of {} ranks is neither the shard dimension '{}', the context dimension '{}' nor "
      "the "
      "replicate dimension '{}' of {}, and {} {} not cut over it",
      dim, s.size, s.shard_dim, s.context_dim, s.replicate_dim, units, listed(s.params),
      s.params.size() == 1 ? "is" : "are");
}

// A unit that averages over the root's ranks, where a dimension of the root's mesh leaves their number open.
void check_gradient_ranks(const ParamGroup& g, const Wrap& root, std::vector<std::string>& wrong) {
  if (g.replicated() || g.options().gradient_ranks > 0) return;
  const auto piece = std::find_if(g.params().begin(), g.params().end(),
                                  [&](const Parameter& p) { return sees_other_batches(p, g.options()); });
  if (piece == g.params().end()) return;
  wrong.push_back(fmt::format(
      "gradient_ranks of unit '{}' is 0, and '{}' is a piece over mesh dimension '{}': its gradients "
      "would be averaged over as many ranks as the root's, but the root's mesh '{}' has a dimension that "
      "is neither its shard, context, replicate nor tensor dimension; set gradient_ranks to the number of "
      "ranks "
      "with batches of their own, or name that dimension as the root's tensor_dim if its ranks compute "
      "on the same data",
      g.unit(), piece->name(), piece->tensor_shard()->mesh_dim, root.mesh.describe()));
}

}  // namespace

void check_meshes(const Wrap& root, const std::vector<ParamGroup*>& groups) {
  std::vector<std::string> wrong;
  Strays strays;
  std::set<std::string> cut_anywhere;
  for (const ParamGroup* g : groups)
    for (auto& p : g->params())
      if (p.tensor_shard() && p.tensor_shard()->parts > 1) cut_anywhere.insert(p.tensor_shard()->mesh_dim);
  for (const ParamGroup* g : groups) {
    check_tensor_shards(*g, wrong);
    if (g->replicated()) continue;  // each rank has its own on purpose
    if (g->mesh().size() != root.mesh.size())
      wrong.push_back(fmt::format(
          "unit '{}' is wrapped with mesh '{}' of {} ranks, the root with '{}' of {}: what "
          "the others do to its parameters would not be known",
          g->unit(), g->mesh().describe(), g->mesh().size(), root.mesh.describe(), root.mesh.size()));
    if (g->trainable()) find_strays(*g, cut_anywhere, strays);
  }
  for (auto& [key, stray] : strays) wrong.push_back(describe(key.front(), stray));
  if (!strays.empty())
    wrong.back() +=
        ". Ranks along such a dimension would train models of their own: name it as shard_dim, "
        "replicate_dim, or context_dim if its ranks share sequences "
        "(or make the mesh with it multiplied into one of them), cut the parameters over it with "
        "set_tensor_shard(), or name it as tensor_dim if its ranks compute on the same data";
  for (const ParamGroup* g : groups)
    if (strays.empty() && gradient_ranks_of(root) == 0) check_gradient_ranks(*g, root, wrong);
  if (!wrong.empty()) throw InvalidArgument(fmt::format("fully_shard: {}", fmt::join(wrong, "; ")));
}

}  // namespace sherd
