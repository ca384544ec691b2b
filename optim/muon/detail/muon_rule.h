// Orthogonalization as the rule of whole matrices. Private to optim/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/optim/muon/plan.h>
#include <sherd/optim/whole/matrix_rule.h>

namespace sherd {

class MuonRule : public MatrixRule {
 public:
  explicit MuonRule(const MuonOptions& options) : options_(options), work_(plan_options(options)) {}

  std::string name() const override { return work_.name(); }
  std::string settings() const override;
  std::vector<std::string> problems() const override { return problems_of(options_); }
  double scale(int64_t rows, int64_t cols) const override { return update_scale(options_, rows, cols); }
  bool checks_values() const override { return true; }
  bool keeps_unused() const override { return options_.fraction < 1; }
  void compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status) override;
  /// The gram form: Gram matrices are summed over the parts.
  void compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                     const std::function<Tensor(Shape)>& make,
                     const std::function<void(const Tensor&)>& sum) override;

  std::string description() const override { return work_.description(); }
  std::vector<int64_t> options_as_words() const override { return work_.options_as_words(); }
  double matrix_flops(int64_t rows, int64_t cols) const override {
    return flops_of(rows, cols, plan_options(options_));
  }
  double cost(const LogicalMatrix& m) const override { return work_.cost(m); }
  double flops(const LogicalMatrix& m) const override { return work_.flops(m); }
  int64_t tensor_bytes(const LogicalMatrix& m) const override { return work_.tensor_bytes(m); }
  bool gram_is_possible(const LogicalMatrix& m) const override { return work_.gram_is_possible(m); }
  double gram_flops(const LogicalMatrix& m, int owners) const override { return work_.gram_flops(m, owners); }
  int64_t gram_bytes(const LogicalMatrix& m, int owners) const override {
    return work_.gram_bytes(m, owners);
  }

 private:
  MuonOptions options_;
  MuonWork work_;
};

}  // namespace sherd
