// Plan in the making, which the steps of make_plan() complete. Private to optim/.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include <sherd/optim/whole/detail/loads.h>
#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/matrix_work.h>
#include <sherd/optim/whole/momentum_options.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

/// One plan, for a given number of copies (see MatrixPlan).
struct PlanDraft {
  PlanDraft(std::span<const LogicalMatrix> m, int cells, int replicas, int copies, const MatrixWork& w,
            const MomentumOptions& o)
      : matrices(m), work(w), options(o), loads(cells * copies) {
    plan.cells = cells;
    plan.replicas = replicas;
    plan.copies = copies;
    plan.entries.resize(m.size());
    cost.reserve(m.size());
    double state = 0;
    for (auto& matrix : m) {
      cost.push_back(w.cost(matrix));
      state += static_cast<double>(w.state_bytes(matrix));
    }
    sum = std::accumulate(cost.begin(), cost.end(), 0.0);
    // In the unit of cost, so that the sum stays.
    for (size_t i = 0; state > 0 && i < m.size(); ++i)
      cost[i] = (1 - o.state_weight) * cost[i] +
                o.state_weight * sum * static_cast<double>(w.state_bytes(m[i])) / state;
    const double largest = cost.empty() ? 0 : *std::max_element(cost.begin(), cost.end());
    bound = std::max(sum / plan.team(), largest);
  }

  std::span<const LogicalMatrix> matrices;
  const MatrixWork& work;
  const MomentumOptions& options;
  MatrixPlan plan;
  Loads loads;               // of the team's ranks, by the entries that have owners
  std::vector<double> cost;  // of each matrix, computed by one owner; its share of state weighed in
  double sum = 0;            // of all costs
  /// Lower bound of the largest load: no plan is better than an even share of all costs, nor than the most
  /// expensive matrix alone.
  double bound = 0;
};

}  // namespace sherd
