// Rule of an optimizer that needs whole matrices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>
#include <sherd/optim/whole/matrix_work.h>

namespace sherd {

/// Matrices [batch, rows, cols] of which this rank has a part: some of the rows if `contract_rows`, else some
/// of the columns. x may be overwritten.
struct MatrixPart {
  Tensor x, out, status;
  bool contract_rows;
};

/// State tensor of a whole matrix, zero at first.
struct MatrixStateSpec {
  /// A word without a dot or bracket; checkpoints name the tensor by it, after the parameter's name.
  std::string key = {};
  /// Shape of one matrix.
  Shape shape = {};
  /// It is of UpdateItem::state_dtype, f32 or bf16, and the rule rounds as it stores it; otherwise f32.
  bool may_be_bf16 = false;
};

/// State of one matrix of a call.
struct MatrixState {
  /// In the order of MatrixRule::state().
  std::vector<Tensor> tensors = {};
  /// Same as in UpdateRule::step(), possibly undefined: if it is not 0, the tensors keep their bits.
  Tensor skip = {};
  /// Key of the noise that rounds its tensors in bf16 (kernels/rest/rest.h).
  uint64_t noise_key = 0;
};

/// Update of whole matrices, a function of their momentum or gradient, and of state of whole matrices. WholeMatrices does
/// everything else: it advances the momentum of this rank's elements, brings each logical matrix (row block, matrix of a
/// stack) to the ranks that compute it, calls compute() or compute_with_state(), sends the results back and updates the
/// weights. Balance, messages, tensor-parallel parts, experts, replicas, skipped steps and checkpoints need nothing from
/// the rule.
///
/// State of whole matrices is stored on the matrix's owner, and on every tensor-parallel rank that computes it. Plans
/// balance its bytes beside the cost. Checkpoints hold it by matrix, so a resume on any ranks gives it to the new owners.
///
/// The functions of MatrixWork have the values of a rule without a form for rows on several ranks. One rank's thread
/// calls all functions. Every rank has a rule of its own with equal settings().
class MatrixRule : public MatrixWork {
 public:
  /// Returns the name in lower case: prefix of the names of streams and buffers.
  std::string label() const;
  /// Returns the FLOPs of compute() for one matrix: the cost that plans balance.
  virtual double matrix_flops(int64_t rows, int64_t cols) const = 0;
  /// Returns all that results depend on, in words. Ranks with other words get an error at the start.
  virtual std::string settings() const = 0;
  /// Returns all invalid options, each with its value; empty when valid.
  virtual std::vector<std::string> problems() const { return {}; }
  /// Returns the factor of the result for a whole matrix of this shape: w = decay * w - lr * scale * result.
  virtual double scale(int64_t, int64_t) const { return 1; }
  /// Returns whether the input is the gradient. Then the optimizer keeps no momentum, and
  /// MomentumOptions::momentum and nesterov are unused.
  virtual bool takes_gradient() const { return false; }
  /// Returns whether the momentum of elements whose result is zero is kept for later steps: it does not decay. Then
  /// MomentumOptions::momentum must be greater than 0.
  virtual bool keeps_unused() const { return false; }
  /// Returns the state of a whole matrix of this shape; a function of shape and settings() alone.
  virtual std::vector<MatrixStateSpec> state(int64_t, int64_t) const { return {}; }

  /// Returns whether compute() itself gives zeros and a status for non-finite input and results. Otherwise the runtime
  /// checks both, and the state, in one pass each. It leaves out an update of NaN or Inf. If the input was finite, the
  /// training ends with an error (UpdateRule::require_sound()). Results of compute_parts() are not checked.
  virtual bool checks_values() const { return false; }

  /// Queues the computation of matrices on `compute`: in and out f32 [batch, rows, cols], contiguous, not overlapping.
  /// Matrices are computed each by itself: the bits of a result depend neither on its batch nor on other matrices, and
  /// are the same on every rank. Waits for nothing.
  /// @param status i32 [batch], a MatrixStatus of each matrix; 0 (fine) when nothing is written.
  virtual void compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status);
  /// Queues the same for a rule with state(), and the state's change.
  /// @param states of each matrix of the batch.
  virtual void compute_with_state(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                                  const std::vector<MatrixState>& states);
  /// Queues the computation of matrices whose rows or columns are on several ranks. `make` returns f32 memory, `sum`
  /// queues the sum of a tensor over the ranks with the other parts. Called on all of these ranks, on some without a
  /// part. Only for rules with gram_is_possible() or distributed tensor parallelism.
  virtual void compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                             const std::function<Tensor(Shape)>& make,
                             const std::function<void(const Tensor&)>& sum);

  std::string description() const override { return settings(); }
  std::vector<int64_t> options_as_words() const override { return {}; }
  double cost(const LogicalMatrix& m) const override { return flops(m); }
  double flops(const LogicalMatrix& m) const override { return matrix_flops(m.whole_rows(), m.whole_cols()); }
  /// The other parts, f32.
  int64_t tensor_bytes(const LogicalMatrix& m) const override;
  std::string words_of(const LogicalMatrix& m) const override;
  int64_t state_bytes(const LogicalMatrix& m) const override;
  bool gram_is_possible(const LogicalMatrix&) const override { return false; }
  double gram_flops(const LogicalMatrix&, int) const override { return 0; }
  int64_t gram_bytes(const LogicalMatrix&, int) const override { return 0; }
};

}  // namespace sherd
