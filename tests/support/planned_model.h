// Models described as tables: for planning without ranks, and for the runtime with them.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/model_plan.h>

#include "support/taped.h"

namespace sherd::test {

/// A parameter of a table: its full name, "UNIT.NAME", says which module has it.
struct TableParam {
  std::string name;
  Shape shape;  // on this rank
  bool matrix = false;
  RowBlocks blocks = {};
  bool frozen = false, ignored = false;
  std::string tied_in = {};  // another module that holds it
  int tensor_dim = -1;       // cut along it over mesh dimension tensor_mesh_dim
  std::string tensor_mesh_dim = "tp";
};

struct TableUnit {
  std::string name;         // path of the wrapped module
  bool other_mesh = false;  // TableModel::other_mesh and its dimensions
  bool reshard_after_forward = true;
};

struct TableModel {
  std::string name;
  std::vector<TableUnit> units;    // but the root
  std::vector<TableParam> params;  // in the order of the module tree
  std::vector<MeshDim> mesh;
  FullyShardOptions options = {};
  std::vector<MeshDim> other_mesh = {};
  RootOptions root = {};  // without ignored
  int ranks() const {
    int n = 1;
    for (auto& d : mesh) n *= d.size;
    return n;
  }
};

inline std::vector<MeshAxis> axes_of(const std::vector<MeshDim>& dims, int rank) {
  std::vector<MeshAxis> axes;
  for (auto& d : dims) axes.push_back({d.name, d.size, 0});
  for (size_t i = axes.size(); i-- > 0; rank /= axes[i].size) axes[i].coordinate = rank % axes[i].size;
  return axes;
}

inline FullyShardOptions options_of(const TableModel& m, const TableUnit& unit) {
  FullyShardOptions o = m.options;
  o.reshard_after_forward = unit.reshard_after_forward;
  if (unit.other_mesh) {
    o.shard_dim = "expert_shard";
    o.tensor_dim = "expert";
    o.gradient_ranks = m.ranks();
  }
  return o;
}

inline std::string module_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}
inline bool is_inside(const std::string& module, const std::string& unit) {
  return unit.empty() || module == unit || module.starts_with(unit + ".");
}

/// The innermost unit around a module and, of a tied one, around the other module as well. "": the root.
inline std::string unit_of(const TableModel& m, const TableParam& p) {
  std::string found;
  for (auto& u : m.units)
    if (is_inside(module_of(p.name), u.name) && u.name.size() > found.size() &&
        (p.tied_in.empty() || is_inside(p.tied_in, u.name)))
      found = u.name;
  return found;
}

/// The table as planning wants it, worked out from names alone.
inline std::vector<PlanUnit> describe(const TableModel& m, int rank) {
  std::vector<TableUnit> all = m.units;
  all.push_back({""});
  std::vector<PlanUnit> units;
  for (auto& u : all) {
    PlanUnit unit{.name = u.name.empty() ? "root" : u.name,
                  .params = {},
                  .mesh = axes_of(u.other_mesh ? m.other_mesh : m.mesh, rank),
                  .options = options_of(m, u),
                  .position = static_cast<int>(units.size()),
                  .root = u.name.empty(),
                  .ranks_id = u.other_mesh ? 1 : 0};
    for (auto& p : m.params)
      if (unit_of(m, p) == u.name)
        unit.params.push_back({.name = p.name,
                               .shape = p.shape,
                               .cut = p.matrix ? CutClass::row : CutClass::element,
                               .row_blocks = p.blocks,
                               .trainable = !p.frozen,
                               .ignored = p.ignored,
                               .dtype = m.options.compute_dtype,
                               .tied = !p.tied_in.empty()});
    units.push_back(std::move(unit));
  }
  const auto set_height = [&](size_t i) {
    for (size_t k = 0; k < units.size(); ++k)
      if (k != i && is_inside(all[k].name, all[i].name))
        units[i].height = std::max(units[i].height, units[k].height + 1);
  };
  for (size_t i = units.size() - 1; i-- > 0;) set_height(i);  // inner ones come later
  set_height(units.size() - 1);
  return units;
}

/// A module of a table: its forward and backward call its children, and every gradient is asked for.
struct TableModule : nn::Module<TableModule> {
  using ModuleBase::child;
  using ModuleBase::param;
  using ModuleBase::tie;
  std::vector<TableModule*> inner;
  nn::Var forward(const nn::Var& in) {
    nn::Var x = with_gradients(in, own_parameters(), [this] {
      for (auto& p : own_parameters())
        if (p.trainable()) p.grad();
    });
    for (auto* m : inner) x = (*m)(x);
    return x;
  }
};

/// The table as modules, wrapped.
class TableTree {
 public:
  TableTree(RankContext& rank, const TableModel& m) {
    nodes_[""] = &pool_.emplace_back();
    for (auto& u : m.units) node(u.name);
    const DeviceMesh mesh(rank.world, m.mesh);
    std::optional<DeviceMesh> other;
    if (!m.other_mesh.empty()) other.emplace(rank.world, m.other_mesh);
    const std::vector<MeshAxis> axes = axes_of(m.mesh, rank.world->rank());
    for (auto& row : m.params) {
      const std::string local = row.name.substr(row.name.rfind('.') + 1);
      Parameter p = node(module_of(row.name)).param(local, row.shape, constant(1));
      p.set_cut(row.matrix ? CutClass::row : CutClass::element);
      if (!row.blocks.empty()) p.set_row_blocks(row.blocks);
      if (row.frozen) p.freeze();
      if (!row.tied_in.empty()) node(row.tied_in).tie(local + "_again", p);
      if (row.tensor_dim < 0) continue;
      const DeviceMesh& cut = mesh.has(row.tensor_mesh_dim) ? mesh : *other;
      p.set_tensor_shard({row.tensor_mesh_dim, row.tensor_dim, cut.size(row.tensor_mesh_dim),
                          cut.coordinate(row.tensor_mesh_dim)});
    }
    for (auto& u : m.units) fully_shard(node(u.name), u.other_mesh ? *other : mesh, options_of(m, u));
    RootOptions root_options = m.root;
    for (auto& p : m.params)
      if (p.ignored) root_options.ignored.push_back(p.name);
    fully_shard(root(), mesh, options_of(m, {""}), root_options);
  }
  TableModule& root() { return *nodes_.at(""); }

 private:
  TableModule& node(const std::string& path) {
    if (const auto it = nodes_.find(path); it != nodes_.end()) return *it->second;
    TableModule& parent = node(module_of(path));
    TableModule& made = pool_.emplace_back();
    parent.child(path.substr(path.rfind('.') + 1), made);
    parent.inner.push_back(&made);
    return *(nodes_[path] = &made);
  }
  std::deque<TableModule> pool_;
  std::map<std::string, TableModule*> nodes_;
};

}  // namespace sherd::test
