// Optimizer of a sharded model: AdamW, Muon and the program's own side by side, by the routing table.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/routing.h>

namespace sherd {

class WeightAverage;

struct OptimizerOptions {
  AdamWOptions adamw = {};
  MuonOptions muon = {};
  /// Weight decay of parameters of two or more dimensions that are not biases; the others do not decay.
  /// Routing rules may override it (UpdateSettings).
  double weight_decay = 0;
  /// dtype of elementwise state, f32, bf16 or i8: moments and momentum, but neither SOAP's factors nor counters. bf16 is rounded
  /// stochastically (kernels/rest/rest.h). i8: AdamW's moments, and Muon's and NorMuon's momentum in 8 bits with a scale for each block
  /// (kernels/quantize/quantize.h), second moments rounded stochastically, the others to nearest; state of parameters without blocks (norms, small ones, odd rows), and
  /// NorMuon's moments, in bf16. Requires FullyShardOptions::whole_state_blocks where ranks share parameters. Routing rules may override
  /// it (UpdateSettings).
  DType state_dtype = DType::f32;
  /// Place of all of the optimizer's state but counters. host: updates pass it through two windows of window_bytes each of device
  /// memory (rest_windows.h), as master weights on the host (FullyShardOptions::master_place). State in 8 bits on the device passes
  /// one. Routing rules may override it.
  Place state_place = Place::device;
  int64_t window_bytes = 0;
  /// Decay of an exponential moving average of the weights, in (0, 1); 0: none. See WeightAverage, and Averaged for its use. It starts
  /// from the weights that the optimizer finds, or that are loaded without an average.
  double ema_decay = 0;
  /// dtype of the average, f32 or bf16 (stochastically rounded). Its place is that of the parameter's state.
  DType ema_dtype = DType::f32;
  /// Skip a step with non-finite gradients on all ranks: see Optimizer::step().
  bool skip_non_finite = true;
  /// The program's own optimizers, for the parameters that its routing rules assign to them. In the same
  /// order on every rank.
  std::vector<UpdateRuleFactory> further = {};
};

/// Further change of weights in the same WeightsChange as an update and directly after it (QkClip).
class AfterUpdate {
 public:
  virtual ~AfterUpdate() = default;
  /// Queues its operations on `compute`, as UpdateRule::step() does, after every update of the optimizer.
  /// With `skip` other than 0, weights stay unchanged, in bits. It writes Parameter::shard() alone; copies
  /// follow.
  virtual void apply(Stream& compute, const Tensor& skip) = 0;
  /// Returns the parameters whose weights it changes.
  virtual std::vector<Parameter> changed() const = 0;
  /// Returns its state, as UpdateRule::state().
  virtual std::vector<StateTensor> state() const { return {}; }
  /// Called once, by Optimizer::after_update(), with the counters of the optimizer (Optimizer::counters()).
  virtual void use_counters(const std::vector<StateCounter>&) {}
};

/// Optimizer of a sharded model. One rank's thread uses it; collective calls in the same order on every rank.
///
/// A root may have several, each with a part of the routing (Routing::part()); every trainable parameter
/// belongs to exactly one of them. Each steps, skips and counts separately, and has its own gradients. A step
/// leaves those of the others unchanged, so one backward may be followed by a step of each. A backward that
/// reaches one optimizer's parameters alone is followed by its step alone. Before a unit's next backward, all
/// of its final gradients must have been used by a step or released by zero_grad(). For example, the
/// generator's pass through the discriminator leaves gradients that only the latter releases. See UpdateSet.
class Optimizer {
 public:
  /// Makes the optimizer. Collective.
  /// @param root sharded by fully_shard(); outlives the optimizer. `routing` from route() of the same root.
  /// @throws InvalidArgument naming all invalid options, and all routes that do not fit the model: parameters
  /// of another model, frozen ones, repeated ones, missing trainable ones (unless it is a part), those of an
  /// optimizer that is absent or ignores their settings, and those that another Optimizer of the root
  /// updates; ShapeMismatch on every rank when ranks were given different routings or options.
  Optimizer(ModuleBase& root, const Routing& routing, const OptimizerOptions& options);

  /// Queues one update on the compute stream, after the pending reductions, and starts the next step's
  /// gradients from zero. Unsharded parameters are refreshed at their next use.
  ///
  /// When the norm of the gradients is non-finite (one inf or NaN element on one rank suffices, ignored
  /// parameters included), the step is skipped on all ranks. Weights, moments, momentum and the update counts
  /// of AdamW's bias correction stay unchanged, in bits; collectives are the same. The device decides by the
  /// sums of clip_grad_norm(), and nothing waits for the host. Without clip_grad_norm() since the last
  /// backward, step() makes these sums itself, with one all-reduce over all ranks.
  /// @throws InvalidArgument when no last backward that reached its parameters has finished since the
  /// previous step, when trainable parameters of the root have no optimizer, for a learning rate that is
  /// negative or non-finite, or when the root is destroyed; nothing has changed then. Exceptions of an update
  /// rule (such as OutOfMemory) pass through. A part of the weights has then changed, and training, steps,
  /// saves and exports throw until a checkpoint has been loaded (ShardRuntime::require_whole_weights()).
  void step(double lr);
  /// Throws the error of an earlier step that the device has found by now, such as NaN in the update of a rule
  /// (UpdateRule::require_sound()). Waits for nothing.
  void require_sound() const;
  /// Applies `more` after every update from now on, after those given before. The same on every rank.
  /// @throws InvalidArgument naming parameters that it changes and this optimizer does not update.
  void after_update(std::shared_ptr<AfterUpdate> more);
  /// Releases this optimizer's gradients without a step: sherd::zero_grad() for its parameters alone. Neither
  /// steps() nor skipped() counts a step.
  void zero_grad();
  /// Returns the parameters that it updates.
  UpdateSet& updates() const { return *updates_; }
  /// Returns the model's runtime. @throws InvalidArgument when the root is destroyed.
  ShardRuntime& runtime() const;
  /// Returns the number of this optimizer's skipped steps. Waits for the compute stream.
  int64_t skipped() const;
  /// Queues a copy of that number to host memory (i64 [1]); read it once the compute stream has reached it.
  [[nodiscard]] Tensor copy_skipped() const;
  /// Returns the steps so far, including skipped ones and those before a resume.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) {
    steps_ = steps;
    note_steps();
  }
  /// Sets the value from which skipped() continues, for callers that set a step back. Queued on the compute
  /// stream.
  void set_skipped(int64_t skipped);
  /// Returns every state tensor: AdamW's, Muon's, the further ones', each in routing order; then those of after_update(), and the
  /// averages of weights.
  std::vector<StateTensor> state() const;
  /// Returns the state of whole matrices, in the same order.
  std::vector<OwnedState> owned_state() const;
  /// Returns every counter, in the same order.
  std::vector<StateCounter> counters() const;
  /// Returns the averages of weights; null without any (OptimizerOptions::ema_decay).
  WeightAverage* average() const { return average_.get(); }
  /// Returns the Muon rule, with its plan and its report (it exists without matrices, too).
  Muon& muon() const { return dynamic_cast<Muon&>(rule(Algorithm::muon)); }
  /// Returns the rule that updates the parameters routed to `algorithm`.
  /// @throws InvalidArgument when that has no parameters.
  UpdateRule& rule(const Algorithm& algorithm) const;

 private:
  /// Makes the rules of this rank's parameters, by algorithm, and records the groups whose copies they write.
  void make_rules(const Routing& routing, const OptimizerOptions& options,
                  const std::vector<UpdateRuleFactory>& factories);
  /// Sets the steps of its parameters, on which the noise of gradients in 16 bits depends.
  void note_steps();
  /// Gives the clip factor to the rules, or multiplies their parameters' gradients by it.
  void apply_gradient_factor();
  /// Returns ShardRuntime::skip(), computed now where the gradients were not checked.
  Tensor skip_of_gradients();

  ShardRuntime& runtime_;
  std::weak_ptr<ShardRuntime> alive_;  // expires with the root
  std::unique_ptr<UpdateSet> updates_;
  /// Null where nothing rests on the host. Before the rules, which end what its streams may wait for.
  std::shared_ptr<RestWindows> windows_;
  std::set<ParamGroup*> copied_;  // the rules write the model's weights of all their parameters
  struct Rule {
    Algorithm algorithm;
    std::unique_ptr<UpdateRule> update;
    bool heeds_gradient_factor;
    std::vector<Parameter> params;
  };
  std::vector<Rule> rules_;
  std::vector<std::shared_ptr<AfterUpdate>> after_;
  std::shared_ptr<WeightAverage> average_;
  Tensor skipped_;                  // i64, on the device
  bool after_writes_host_ = false;  // the steps in after_ write masters on the host
  bool skip_non_finite_;
  int64_t steps_ = 0;
};

}  // namespace sherd
