#include <sherd/optim/whole/make_plan.h>

#include <utility>

#include <sherd/optim/whole/detail/accounting.h>
#include <sherd/optim/whole/detail/balancing.h>
#include <sherd/optim/whole/detail/placement.h>

namespace sherd {
namespace {

MatrixPlan plan_with(int copies, std::span<const LogicalMatrix> matrices, int cells, int replicas,
                     const MatrixWork& work, const MomentumOptions& options) {
  PlanDraft draft(matrices, cells, replicas, copies, work, options);
  // LPT: fixed entries load their ranks first; the others follow by descending cost.
  assign_owners(draft, place_fixed(draft));
  if (options.mode == MatrixMode::automatic && copies == 1) rebalance(draft);
  account(draft);
  return std::move(draft.plan);
}

}  // namespace

MatrixPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas, const MatrixWork& work,
                     const MomentumOptions& options) {
  const bool may_spread = options.mode == MatrixMode::automatic || options.mode == MatrixMode::owner;
  MatrixPlan apart = plan_with(1, matrices, cells, replicas, work, options);
  if (replicas == 1 || !may_spread) return apart;
  // Spread: replicas share the matrices, which saves FLOPs and costs messages between replicas.
  MatrixPlan spread = plan_with(replicas, matrices, cells, replicas, work, options);
  return spread.seconds < apart.seconds ? spread : apart;
}

}  // namespace sherd
