#include <sherd/fsdp/detail/unit_claims.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <sherd/fsdp/shard_axes.h>
#include <sherd/fsdp/tensor_shard.h>

namespace sherd {

std::vector<UnitClaim> claim_parameters(ModuleBase& root,
                                        const std::function<int(const Parameter&)>& registrations) {
  std::vector<UnitClaim> claims;
  root.visit([&](const std::string& name, ModuleBase& m) {
    if (m.wrap() && &m != &root) claims.push_back({&m, name, false, 0, {}, {}});
  });
  claims.push_back({&root, "root", true, 0, {}, {}});

  std::unordered_set<std::string> claimed;  // names are unique
  std::unordered_map<const ModuleBase*, int> heights;
  // A parameter belongs to the innermost unit that holds all of its registrations; a tied one that two units
  // share goes to the unit around both, or to the root.
  const auto claim = [&](UnitClaim& unit) {
    std::unordered_map<std::string, int> inside;
    unit.module->visit([&](const std::string&, ModuleBase& m) {
      if (const auto it = heights.find(&m); it != heights.end())
        unit.height = std::max(unit.height, it->second + 1);
      for (auto& p : m.own_parameters())
        if (!claimed.contains(p.name()) && inside[p.name()]++ == 0) unit.params.push_back(p);
    });
    // A parameter with registrations outside of the unit would be resharded while modules outside use it.
    if (!unit.root)
      std::erase_if(unit.params, [&](const Parameter& p) { return inside[p.name()] < registrations(p); });
    for (auto& p : unit.params) {
      claimed.insert(p.name());
      unit.tied.push_back(registrations(p) > 1);
    }
    heights[unit.module] = unit.height;
  };
  // Modules are visited before those inside them: from the last to the first, inner ones claim first.
  for (size_t i = claims.size() - 1; i-- > 0;) claim(claims[i]);
  claim(claims.back());
  return claims;
}

bool sees_other_batches(const Parameter& p, const FullyShardOptions& o) {
  return p.trainable() && p.tensor_shard() && p.tensor_shard()->mesh_dim != o.tensor_dim;
}

int gradient_ranks_of(const Wrap& root) {
  const FullyShardOptions& o = root.options;
  if (o.gradient_ranks > 0) return o.gradient_ranks;
  int ranks = 1;
  for (const MeshDim& d : root.mesh.dims()) {
    const bool data = o.averages_over(d.name);
    if (data) ranks *= d.size;
    if (!data && d.name != o.tensor_dim && d.size > 1) return 0;
  }
  return ranks;
}

PlanUnit plan_unit_of(const UnitClaim& claim, int position, int ranks_id, const Wrap& root) {
  const Wrap& wrap = *claim.module->wrap();
  PlanUnit unit{.name = claim.name,
                .params = {},
                .mesh = {},
                .options = wrap.options,
                .position = position,
                .root = claim.root,
                .height = claim.height,
                .ranks_id = ranks_id};
  for (auto& d : wrap.mesh.dims()) unit.mesh.push_back({d.name, d.size, wrap.mesh.coordinate(d.name)});
  const auto& ignored = root.root.ignored;
  for (size_t i = 0; i < claim.params.size(); ++i) {
    const Parameter& p = claim.params[i];
    unit.params.push_back({.name = p.name(),
                           .shape = p.shape(),
                           .cut = p.cut(),
                           .row_blocks = p.row_blocks(),
                           .trainable = p.trainable(),
                           .ignored = std::find(ignored.begin(), ignored.end(), p.name()) != ignored.end(),
                           .dtype = p.compute_dtype().value_or(wrap.options.compute_dtype),
                           .tied = claim.tied[i]});
    PlanParam& planned = unit.params.back();
    // Where tensor parallelism cuts blocks, Optimizer refuses state in 8 bits.
    if (const int64_t block = wrap.options.whole_state_blocks ? p.state_block() : 0;
        block > 0 && p.shape().back() % block == 0)
      planned.granule = block;
    if (planned.dtype != DType::f32) {
      planned.master = p.master().value_or(wrap.options.master);
      // Masters of their own; bf16 weights without have none, whatever the place.
      if (planned.master != Master::bf16 && p.trainable())
        planned.master_place = p.master_place().value_or(wrap.options.master_place);
    } else if (p.master().value_or(Master::f32) != Master::f32) {
      throw InvalidArgument(
          fmt::format("fully_shard: parameter '{}' is computed with in f32 and is its own master; master {} "
                      "needs compute dtype bf16",
                      p.name(), name_of(*p.master())));
    }
    // A number that is the unit's own anyhow stays 0: units with equal options share buckets.
    int& ranks = unit.options.gradient_ranks;
    if (ranks == 0 && !unit.params.back().ignored && sees_other_batches(p, wrap.options) &&
        ShardAxes::of(unit.mesh, unit.options).divisor != gradient_ranks_of(root))
      ranks = gradient_ranks_of(root);
  }
  return unit;
}

}  // namespace sherd
