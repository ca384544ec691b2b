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

struct OptimizerOptions {
  AdamWOptions adamw = {};
  MuonOptions muon = {};
  /// Applied to parameters of two or more dimensions that are no biases; the others do not decay. Rules of the routing
  /// may say otherwise (UpdateSettings).
  double weight_decay = 0;
  /// A step whose gradients are not finite is skipped, on all ranks alike: see Optimizer::step().
  bool skip_non_finite = true;
  /// Optimizers of the program's own, for the parameters that its routing rules send to them. In the same
  /// order on every rank.
  std::vector<UpdateRuleFactory> further = {};
};

/// What changes weights further, in the same WeightsChange as an update and right behind it (QkClip).
class AfterUpdate {
 public:
  virtual ~AfterUpdate() = default;
  /// Queues its work on `compute`, as UpdateRule::step() does, after every update of the optimizer; `skip` as there:
  /// other than 0, weights stay as they are, in bits. It writes Parameter::shard() alone: copies follow.
  virtual void apply(Stream& compute, const Tensor& skip) = 0;
  /// The parameters whose weights it changes.
  virtual std::vector<Parameter> changed() const = 0;
};

/// One rank's thread uses it; collective calls in the same order on every rank.
///
/// A root may have several, each with a part of the routing (Routing::part()); every trainable parameter belongs to
/// exactly one of them. Each steps, skips and counts by itself, and has its own gradients: a step leaves those of the
/// others as they are, so that one backward may be followed by a step of each, and backwards that reach one
/// optimizer's parameters alone by its step alone. Before a unit's next backward all of its final gradients
/// have been used by a step or given up by zero_grad(): the generator's pass through the discriminator, say, leaves
/// gradients that only the latter ends. See UpdateSet.
class Optimizer {
 public:
  /// @param root sharded by fully_shard(); outlives the optimizer. `routing` from route() of the same root.
  /// @throws InvalidArgument naming all options that cannot be, and all of the routing that is not of this
  /// model: parameters of another one, frozen ones, such that are there twice, trainable ones that are
  /// missing (unless it is a part), those that go to an optimizer that is not there or does not heed their
  /// settings, and those that another Optimizer
  /// of the root updates; ShapeMismatch on every rank when ranks
  /// were given different routings or options. Collective.
  Optimizer(ModuleBase& root, const Routing& routing, const OptimizerOptions& options);

  /// Queues one update on the compute stream, after the pending reductions, and starts the next step's
  /// gradients from zero. Whole parameters are refreshed when they are next used.
  ///
  /// When the norm of the gradients is not finite (one element of one rank that is inf or NaN is enough,
  /// ignored parameters included), the step is skipped on all ranks: weights, moments, momentum and the
  /// updates that AdamW's bias correction counts stay as they are, in bits; collectives are the same. The
  /// device decides by the sums of clip_grad_norm(), and nothing waits for the host. Without clip_grad_norm()
  /// since the last backward, step() makes these sums itself, with one all-reduce over all ranks.
  /// @throws InvalidArgument when no last backward has finished since the previous step that has reached its
  /// parameters, when some trainable parameters of the root have no optimizer, or for a learning
  /// rate that is negative or not finite, or when the root is gone; nothing has changed then. Whatever an update rule throws
  /// (OutOfMemory, say) passes through: a part of the weights has changed, and training, steps, saves and exports throw until
  /// a checkpoint has been loaded (ShardRuntime::require_whole_weights()).
  void step(double lr);
  /// Has `more` applied behind every update from now on, after those that were given before. The same on every rank.
  /// @throws InvalidArgument naming parameters that it changes and this optimizer does not update.
  void after_update(std::shared_ptr<AfterUpdate> more);
  /// Gives up this optimizer's gradients without a step: sherd::zero_grad(), of its parameters alone. No step is
  /// counted, by steps() or by skipped().
  void zero_grad();
  /// The parameters that it updates.
  UpdateSet& updates() const { return *updates_; }
  /// The model's. @throws InvalidArgument when the root is gone.
  ShardRuntime& runtime() const;
  /// Of them all, those of this optimizer that were skipped. Waits for the compute stream.
  int64_t skipped() const;
  /// Queues a copy of that number to host memory (i64 [1]), to be read once the compute stream has come
  /// there.
  Tensor copy_skipped() const;
  /// Steps so far, skipped ones and those before a resume included.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// What skipped() goes on from, for who sets a step back. Queued on the compute stream.
  void set_skipped(int64_t skipped);
  /// Every state tensor: AdamW's, Muon's, the further ones', each in routing order.
  std::vector<StateTensor> state() const;
  /// Every counter, in the same order.
  std::vector<StateCounter> counters() const;
  /// The Muon half, with its plan and its report (it exists without matrices, too).
  Muon& muon() const { return dynamic_cast<Muon&>(rule(Algorithm::muon)); }
  /// What updates the parameters that are routed to `algorithm`.
  /// @throws InvalidArgument when there is no such optimizer.
  UpdateRule& rule(const Algorithm& algorithm) const;

 private:
  /// What this rank updates, by algorithm, and the groups whose copies that leaves written.
  void make_rules(const Routing& routing, double weight_decay,
                  const std::vector<UpdateRuleFactory>& factories);
  /// ShardRuntime::skip(), made now where nobody has looked.
  Tensor skip_of_gradients();

  ShardRuntime& runtime_;
  std::weak_ptr<ShardRuntime> alive_;  // as long as the root is
  std::unique_ptr<UpdateSet> updates_;
  std::set<ParamGroup*> copied_;       // the rules write the model's weights of all their parameters
  struct Rule {
    Algorithm algorithm;
    std::unique_ptr<UpdateRule> update;
  };
  std::vector<Rule> rules_;
  std::vector<std::shared_ptr<AfterUpdate>> after_;
  Tensor skipped_;  // i64, on the device
  bool skip_non_finite_;
  int64_t steps_ = 0;
};

}  // namespace sherd
