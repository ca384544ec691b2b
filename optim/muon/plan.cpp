#include <sherd/optim/muon/plan.h>

#include <fmt/format.h>

#include <bit>

namespace sherd {

std::string MuonWork::description() const {
  const std::string part = o_.fraction < 1 ? fmt::format(", {} of the rows", o_.fraction) : "";
  return fmt::format("form {}, {} steps{}", o_.form == IterationForm::gram ? "gram" : "standard", o_.steps,
                     part);
}

// For the fingerprint: ranks with other words would schedule other messages.
std::vector<int64_t> MuonWork::options_as_words() const {
  return {static_cast<int64_t>(o_.method),
          static_cast<int64_t>(o_.form),
          static_cast<int64_t>(o_.tensor),
          o_.steps,
          o_.restarts,
          std::bit_cast<int64_t>(o_.fraction)};
}

// Rows are distributed over owners, so X^T X must be the small Gram matrix: cols <= rows.
bool MuonWork::gram_is_possible(const LogicalMatrix& m) const {
  return m.rows >= m.cols && m.tensor_dim < 0 && o_.method == Orthogonalizer::newton_schulz &&
         o_.fraction == 1;
}

MatrixPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                     const PlanOptions& options) {
  return make_plan(matrices, cells, replicas, MuonWork(options), matrix_plan_options(options));
}

std::string explain(const MatrixPlan& plan, std::span<const LogicalMatrix> matrices,
                    const PlanOptions& options) {
  return explain(plan, MuonWork(options), matrices);
}

}  // namespace sherd
