#include <sherd/optim/whole/detail/team_comms.h>

#include <fmt/format.h>

#include <algorithm>

#include <sherd/fsdp/group.h>

namespace sherd {
namespace {

std::vector<std::string> joined(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

TeamComms TeamComms::make(const std::vector<Parameter>& params, const MatrixPlan& plan,
                          const std::string& name, bool with_cells) {
  TeamComms c;
  const ParamGroup& group = params.front().group();
  const ShardAxes& axes = group.axes();
  const std::string team = fmt::format("{}'s team of '{}'", name, params.front().name());
  if (plan.team() > 1) {
    c.team = group.mesh().flatten(plan.copies > 1 ? joined(axes.state_split, axes.state_repeated)
                                                  : axes.state_split);
    c.rank = c.team->rank();
    // Each takes memory of the communication library: those alone that the plan uses.
    const auto uses = [&](PlanMode mode) {
      return std::ranges::any_of(plan.entries, [&](const PlanEntry& e) { return e.mode == mode; });
    };
    const auto clone = [&](const std::string& purpose) {
      auto comm = c.team->clone();
      comm->serve(Purpose(purpose + team));
      comm->connect_pairs();
      return comm;
    };
    if (uses(PlanMode::owner) || uses(PlanMode::gram)) {
      c.in = clone("matrices to the owners of ");
      c.out = clone("results from the owners of ");
    }
    if (uses(PlanMode::gather) || uses(PlanMode::gram)) c.gram = clone("products of ");
    if (with_cells && plan.cells > 1) {
      c.cells = group.mesh().flatten(axes.state_split)->clone();
      c.cells->serve(Purpose("refinement of the results of " + team));
    }
  }
  for (const Parameter& p : params) {
    const auto& tensor = p.tensor_shard();
    // Parameters cut in other dimensions (stacks of experts) have whole matrices on each rank.
    const bool cuts_matrices =
        tensor && tensor->parts > 1 && tensor->dim >= static_cast<int>(p.shape().size()) - 2;
    if (cuts_matrices && !c.tensor) c.tensor = group.mesh().comm(tensor->mesh_dim)->clone();
  }
  // Not in the digest: owners differ by rank, so consistent ranks make different numbers of these calls.
  if (c.tensor) c.tensor->serve(Purpose("tensor-parallel pieces of " + team, false));

  // Tensor ranks first, then the team with its replicas: a value that agrees over both agrees on all ranks of
  // the product.
  c.planning = {c.tensor};
  if (!group.replicated())
    c.planning.push_back(group.mesh().flatten(joined(axes.state_split, axes.state_repeated)));
  std::erase_if(c.planning, [](const auto& comm) { return !comm || comm->size() == 1; });
  return c;
}

}  // namespace sherd
