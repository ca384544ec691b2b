// Plan in the making, which the steps of make_plan() complete. Private to optim/.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include <sherd/optim/whole/detail/loads.h>
#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/matrix_work.h>
#include <sherd/optim/whole/plan.h>
#include <sherd/optim/whole/plan_options.h>

namespace sherd {

/// One plan, for a given number of copies (see MatrixPlan).
struct PlanDraft {
  PlanDraft(std::span<const LogicalMatrix> m, int cells, int replicas, int copies, const MatrixWork& w,
            const MatrixPlanOptions& o)
      : matrices(m), work(w), options(o), loads(cells * copies) {
    plan.cells = cells;
    plan.replicas = replicas;
    plan.copies = copies;
    plan.entries.resize(m.size());
    cost.reserve(m.size());
    for (auto& matrix : m) cost.push_back(w.cost(matrix));
    sum = std::accumulate(cost.begin(), cost.end(), 0.0);
    const double largest = cost.empty() ? 0 : *std::max_element(cost.begin(), cost.end());
    bound = std::max(sum / plan.team(), largest);
  }

  std::span<const LogicalMatrix> matrices;
  const MatrixWork& work;
  const MatrixPlanOptions& options;
  MatrixPlan plan;
  Loads loads;               // of the team's ranks, by the entries that have owners
  std::vector<double> cost;  // of each matrix, computed by one owner
  double sum = 0;            // of all costs
  /// Lower bound of the largest load: no plan is better than an even share of all costs, nor than the most
  /// expensive matrix alone.
  double bound = 0;
};

}  // namespace sherd
