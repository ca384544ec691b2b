// Orthogonalization as the rule of whole matrices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/optim/muon/muon_options.h>
#include <sherd/optim/whole/matrix_rule.h>

namespace sherd {

class MuonRule : public MatrixRule {
 public:
  explicit MuonRule(const MuonOptions& options = {}) : o_(options) {}

  std::string name() const override { return "Muon"; }
  std::string settings() const override;
  std::vector<std::string> problems() const override { return problems_of(o_); }
  double scale(int64_t rows, int64_t cols) const override { return update_scale(o_, rows, cols); }
  bool checks_values() const override { return true; }
  bool keeps_unused() const override { return o_.fraction < 1; }
  void compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status) override;
  /// The gram form: Gram matrices are summed over the parts.
  void compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                     const std::function<Tensor(Shape)>& make,
                     const std::function<void(const Tensor&)>& sum) override;

  std::string description() const override;
  std::vector<int64_t> options_as_words() const override;
  /// The form of a matrix whose shape determines it.
  std::string note(const LogicalMatrix& m) const override;
  /// A symmetric product counts half, since only one triangle is computed.
  double matrix_flops(int64_t rows, int64_t cols) const override;
  /// Newton-Schulz on one rank, steps * s^2 * (2l + s) with the short side s and the long side l of the whole matrix, of
  /// whose rows a fraction counts. Under distributed tensor parallelism s is the side of the Gram matrices, the one that
  /// is not cut, and l this rank's part of the other. With forms by shape: the FLOPs.
  double cost(const LogicalMatrix& m) const override;
  double flops(const LogicalMatrix& m) const override;
  /// The other parts, or the sums of Gram matrices.
  int64_t tensor_bytes(const LogicalMatrix& m) const override;
  /// At least as many rows as columns, not cut by tensor parallelism, Newton-Schulz of all rows.
  bool gram_is_possible(const LogicalMatrix& m) const override;
  /// Each owner forms R = X^T X and X Q of its own rows, and all iterate on the same R.
  double gram_flops(const LogicalMatrix& m, int owners) const override;
  int64_t gram_bytes(const LogicalMatrix& m, int owners) const override;

 private:
  bool is_distributed(const LogicalMatrix& m) const;
  int steps() const { return static_cast<int>(o_.orthogonalize.steps.size()); }
  int restarts() const { return static_cast<int>(o_.orthogonalize.restarts.size()); }
  /// Returns the runs of the iteration when Gram matrices are summed over ranks, each starting with R = X X^T:
  /// restarts + 1. The standard form is the gram form restarted after every step. by_shape has the rounds of the gram
  /// form, the fewest: the ranks of a sum have one number of rounds, for matrices of any shape.
  int gram_rounds() const;
  /// Returns the bytes that each of `ranks` receives (and sends) for all sums of an n x n Gram matrix (f32). A round is a
  /// reduce-scatter and an all-gather of n^2 elements.
  int64_t gram_sum_bytes(int64_t n, int64_t ranks) const;

  MuonOptions o_;
};

}  // namespace sherd
