// Optimizer of whole matrices around a rule: momentum, plan, messages, update and state.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/optim/update_rule.h>
#include <sherd/optim/whole/matrix_rule.h>
#include <sherd/optim/whole/momentum_options.h>
#include <sherd/optim/whole/plan.h>
#include <sherd/optim/whole/refinement.h>

namespace sherd {

class MomentumTeam;
struct MatrixStreams;

/// Makes a rank's rule. Called on several ranks' threads at once.
using MatrixRuleMaker = std::function<std::shared_ptr<MatrixRule>()>;

/// Momentum and a MatrixRule over sharded matrices. Each step runs momentum and Nesterov on the local elements (EMA
/// form, as torch.optim.Muon). Every logical matrix (row block, matrix of a stack) is gathered where the plan says,
/// computed by the rule, and the result sent back. Each rank updates its own elements:
///  w = decay * w - lr * scale * result.
/// Momentum is sharded exactly like the parameter, so it is independent of plans and modes. State of the rule is on the
/// matrices' owners, which the plan chooses; a mode that computes a matrix on several ranks is refused then.
///
/// Bits: local, owner and gather entries run the rule on the same whole matrix and give the result of a single rank.
/// gram entries and `distributed` tensor parallelism sum over ranks: equal to rounding.
///
/// Messages are sent in chunks, one all-to-all-v each way, on two side streams: chunk k is computed while k +
/// 1 arrives and k - 1 returns. Matrices without messages come first.
class WholeMatrices : public UpdateRule {
 public:
  /// Returns the factory for OptimizerOptions::further.
  /// @param algorithm with CutClass::row and matrices_only.
  [[nodiscard]] static UpdateRuleFactory factory(const Algorithm& algorithm, const MatrixRuleMaker& make_rule,
                                                 const MomentumOptions& options = {});
  /// Makes communicators, and compares the plans' fingerprints once. Collective.
  /// @throws ShapeMismatch naming every item that is neither a matrix nor a stack of them; InvalidArgument
  /// naming all invalid options, weight decays, and keys and shapes of the rule's state, or when a forced mode is not
  /// possible; ShapeMismatch on every rank when ranks planned differently.
  /// @param refinement processes the results in place of the rule's scale, for an optimizer on top of this one; null:
  /// none. Outlives it; the same on every rank.
  WholeMatrices(Device& device, std::vector<UpdateItem> items, std::shared_ptr<MatrixRule> rule,
                const MomentumOptions& options, MatrixRefinement* refinement = nullptr);
  /// Waits for the side streams. When an exception unwinds the rank, it aborts the group first.
  ~WholeMatrices() override;
  /// Queues one step. With `skip` other than 0 messages are sent all the same, but neither weights nor
  /// momentum change.
  /// @throws as require_sound(); an InvalidArgument or ShapeMismatch of the rule, with the matrices and the step.
  void step(Stream& compute, double lr, const Tensor& skip = {}) override;
  /// @throws Error naming matrix, step and rank when an earlier step's result or state was NaN or Inf from finite input
  /// (MatrixRule::checks_values()). All other ranks' calls then fail with a CommError that quotes it.
  void require_sound() override;
  /// Returns momentum_buffer of every parameter; nothing where the rule takes the gradient.
  std::vector<StateTensor> state() const override;
  /// Returns "updates", the number of updates so far, of every parameter whose weights or momentum are rounded to bf16.
  std::vector<StateCounter> counters() const override;
  /// Returns the rule's state of whole matrices.
  std::vector<OwnedState> owned_state() const override;

  /// Returns a human-readable plan of each set of ranks that shares layouts (experts have their own).
  std::string explain() const;
  const std::vector<MatrixPlan>& plans() const { return plans_; }
  /// Queues a device-to-host copy of the latest step's status of every matrix. Pass it to report() after the
  /// compute stream has passed this point.
  [[nodiscard]] std::vector<Tensor> copy_statuses();
  /// Returns the logical matrices whose update in that step was zero because the matrix was zero or
  /// non-finite. One rank of its team reports each matrix.
  std::vector<std::pair<std::string, MatrixStatus>> report(const std::vector<Tensor>& statuses) const;
  /// Returns the same for the latest step. Waits for the compute stream.
  std::vector<std::pair<std::string, MatrixStatus>> report();

 private:
  Device& device_;
  std::shared_ptr<MatrixRule> rule_;
  std::vector<MatrixPlan> plans_;
  std::vector<std::pair<size_t, size_t>> order_;  // team and slot of each item
  int exceptions_before_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<MomentumTeam>> teams_;
  std::unique_ptr<MatrixStreams> streams_;  // last: they finish before the communicators are destroyed
};

}  // namespace sherd
