// Muon's plan: a plan for whole matrices with the cost of orthogonalizing them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sherd/optim/muon/plan_cost.h>
#include <sherd/optim/muon/plan_options.h>
#include <sherd/optim/whole/make_plan.h>
#include <sherd/optim/whole/plan_text.h>

namespace sherd {

/// Orthogonalization of matrices, as a plan needs it.
class MuonWork : public MatrixWork {
 public:
  explicit MuonWork(const PlanOptions& options) : o_(options) {}
  std::string name() const override { return "Muon"; }
  std::string description() const override;
  std::vector<int64_t> options_as_words() const override;
  double cost(const LogicalMatrix& m) const override { return cost_of(m, o_); }
  double flops(const LogicalMatrix& m) const override { return rank_flops(m, o_); }
  int64_t tensor_bytes(const LogicalMatrix& m) const override { return sherd::tensor_bytes(m, o_); }
  /// At least as many rows as columns, not cut by tensor parallelism, Newton-Schulz of all rows.
  bool gram_is_possible(const LogicalMatrix& m) const override;
  double gram_flops(const LogicalMatrix& m, int owners) const override {
    return shared_gram_flops(m, owners, o_);
  }
  int64_t gram_bytes(const LogicalMatrix& m, int owners) const override {
    return gram_sum_bytes(m.cols, owners, o_);
  }

 private:
  PlanOptions o_;
};

/// Returns the plan of make_plan() and the text of explain() for MuonWork.
[[nodiscard]] MatrixPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                                   const PlanOptions& options);
[[nodiscard]] std::string explain(const MatrixPlan& plan, std::span<const LogicalMatrix> matrices,
                                  const PlanOptions& options);

}  // namespace sherd
