// Optimizer of whole matrices on one team: momentum, rule and update. Private to optim/.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/optim/whole/detail/owned_states.h>
#include <sherd/optim/whole/detail/rule_guard.h>
#include <sherd/optim/whole/detail/team.h>
#include <sherd/optim/whole/matrix_rule.h>
#include <sherd/optim/whole/momentum_options.h>
#include <sherd/optim/whole/refinement.h>

namespace sherd {

class MomentumTeam : private MatrixClient {
 public:
  struct Slot {
    Parameter param;
    double weight_decay = 0;
    RestState momentum;  // of this rank's piece; undefined where the rule takes the gradient
    Place state_place = Place::device;
    RestWindows* windows = nullptr;  // the same of all slots, or null
    double lr_factor = 1;
    size_t item = 0;  // index among the optimizer's items
    bool writes_copy = false;
    DType state_dtype = DType::f32;
    Tensor updates = {};  // f32 [1], the updates so far; undefined unless something of it is rounded

    RestForms forms() const;
  };

  /// Collective over the team, as MatrixTeam.
  /// @param slots parameters of groups with equal mesh and axes.
  /// @param rule outlives the team.
  /// @param refinement null, or outlives the team.
  MomentumTeam(Device& device, std::vector<Slot> slots, MatrixRule& rule, const MomentumOptions& options,
               MatrixStreams& streams, MatrixRefinement* refinement);

  /// Queues the update on `compute`; see UpdateRule::step.
  void step(Stream& compute, double lr, const Tensor& skip, const Tensor& gradient_factor);

  /// Same as UpdateRule::require_sound().
  void require_sound() { guard_.require_sound(); }

  const std::vector<Slot>& slots() const { return slots_; }
  const OwnedStates& states() const { return states_; }
  const MatrixTeam& team() const { return team_; }
  MatrixTeam& team() { return team_; }

 private:
  void pack(Stream& compute, const Tensor& message, const MatrixChunk& chunk) override;
  void compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
               const std::vector<int>& matrices) override;
  void compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                     const std::function<void(const Tensor&)>& sum) override;
  void update(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) override;
  /// Returns the results as the refinement leaves them.
  Tensor refined(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut);
  /// Keeps the momentum of elements whose result is zero (MatrixRule::keeps_unused()).
  void keep_unused(Stream& compute, const Tensor& results, const MatrixChunk& chunk);
  /// Counts an update of every slot that is not frozen.
  void count_updates(Stream& compute);
  /// Computes matrices whose state is in device memory.
  void compute_some(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                    const std::vector<int>& matrices, const std::vector<MatrixState>& states);
  /// Queues the checks of the results and of the state.
  void check_results(Stream& compute, const Tensor& out, const Tensor& status,
                     const std::vector<int>& matrices, const std::vector<MatrixState>& states);
  /// Queues a check of matrices [batch, rows, cols], but for those of frozen parameters.
  void check(Stream& compute, const Tensor& values, const Tensor& status, const std::vector<int>& matrices,
             MatrixStatus found, bool clears);
  /// Return the key of a matrix's noise, and the noise of state along it.
  uint64_t noise_key_of(int matrix) const;
  Noise noise_of(int matrix) const {
    const Tensor& updates = slot_of(matrix).updates;
    return {.key = noise_key_of(matrix), .count = updates.defined() ? updates.data<float>() : nullptr};
  }
  const Slot& slot_of(int matrix) const { return slots_[team_.param_of(matrix)]; }

  std::vector<Slot> slots_;
  MatrixRule& rule_;
  MomentumOptions options_;
  MatrixRefinement* refinement_;
  MatrixTeam team_;
  OwnedStates states_;
  RuleGuard guard_;
  Tensor updates_;      // f32, one for each slot; undefined where none has any
  Tensor zero_;         // f32 [1], where the rule takes the gradient: the count of a noise that nothing uses
  Tensor skip_frozen_;  // of parameters that are frozen: always 1
  double lr_ = 0;       // of the step that is being issued
  Tensor skip_;         // of the step that is being issued
  Tensor factor_;       // of its gradients; undefined: 1
};

}  // namespace sherd
