// KL-SOAP: Adam in the eigenbasis of Kronecker factors of the gradient's covariance.
#pragma once

#include <string>
#include <vector>

#include <sherd/kernels/soap/soap.h>
#include <sherd/optim/whole_matrices.h>

namespace sherd {

struct SoapOptions {
  SoapConstants constants = {};
  /// Sides that are longer keep the identity as their basis, without state; at most kLargestSoapSide.
  int64_t max_dim = 8192;
  /// Decay, plan and messages. Its momentum and nesterov are unused. Mode auto, owner or local; tensor duplicated.
  MomentumOptions whole = {};
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const SoapOptions& options);

/// The step of KL-SOAP (kernels/soap/soap.h has the formulas) as the rule of whole matrices:
///  w = decay * w - lr * update.
/// State of a matrix [m, n], on its owner, f32 but the moments of UpdateItem::state_dtype, with the prefix "soap_" in checkpoints: exp_avg and exp_avg_sq [m, n];
/// steps [1]; left, left_basis [m, m] and left_values [m]; right, right_basis [n, n] and right_values [n]. That is 24 bytes
/// per parameter of a square matrix.
class SoapRule : public MatrixRule {
 public:
  explicit SoapRule(const SoapOptions& options) : o_(options) {}
  std::string name() const override { return "SOAP"; }
  std::string settings() const override;
  std::vector<std::string> problems() const override { return problems_of(o_); }
  double matrix_flops(int64_t rows, int64_t cols) const override;
  bool takes_gradient() const override { return true; }
  std::vector<MatrixStateSpec> state(int64_t rows, int64_t cols) const override;
  void compute_with_state(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                          const std::vector<MatrixState>& states) override;

 private:
  SoapOptions o_;
};

class Soap : public WholeMatrices {
 public:
  static constexpr Algorithm kName{"soap", CutClass::row, true};
  /// Returns the factory for OptimizerOptions::further.
  [[nodiscard]] static UpdateRuleFactory factory(const SoapOptions& options = {});
  /// Collective, as WholeMatrices.
  /// @throws as WholeMatrices does; NotSupported on a device without SOAP's kernels.
  Soap(Device& device, std::vector<UpdateItem> items, const SoapOptions& options);
};

}  // namespace sherd
