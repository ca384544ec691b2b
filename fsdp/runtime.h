// Runtime of one sharded model: makes its units, connects their shared state, begins and ends steps.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/model_plan.h>
#include <sherd/fsdp/module_base.h>
#include <sherd/fsdp/unit.h>
#include <sherd/fsdp/update_set.h>
#include <sherd/fsdp/wrap.h>

namespace sherd {

class Bucket;
class RankComparison;
struct UnitContext;
class UpdateCount;
class WeightsChange;

/// Runtime of one sharded model. fully_shard() of the root makes it; the root module owns it. One rank's
/// thread uses it.
class ShardRuntime : public std::enable_shared_from_this<ShardRuntime> {
 public:
  /// Builds the units of every wrapped module below `root`, which is wrapped itself. Collective over the
  /// mesh.
  explicit ShardRuntime(ModuleBase& root);
  /// Completes queued operations and detaches units that others hold. When an exception unwinds the rank, it
  /// aborts the group first, so that no rank waits for another.
  ~ShardRuntime();
  ShardRuntime(const ShardRuntime&) = delete;
  ShardRuntime& operator=(const ShardRuntime&) = delete;

  Device& device() const { return device_; }
  const DeviceMesh& mesh() const { return mesh_; }
  /// Returns the options of the root as a unit.
  const FullyShardOptions& options() const { return options_; }
  /// Returns the units in registration order, the root last.
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  /// Returns the plan made before any allocation.
  const ModelPlan& plan() const { return plan_; }
  /// Returns every ParamGroup of every unit, in that order, then those of buckets that span units
  /// (ModelPlan::buckets).
  std::vector<ParamGroup*> groups() const;
  /// Seed of the noise of updates (kernels/rest/rest.h): RootOptions::seed, or the one that a loaded checkpoint
  /// continues. The same on every rank.
  uint64_t noise_seed() const;
  void set_noise_seed(uint64_t seed);

  /// Sets whether the next backward is the last of the step. Only the last brings gradients to their final
  /// placement. Default: true; false for gradient accumulation.
  void set_last_microbatch(bool last);
  bool last_microbatch() const;
  /// Sets whether backwards that are not the last of their step keep unreduced gradients open instead of
  /// reducing them (GradientSync::last; Accumulate sets both). Default: false.
  void set_hold_gradients(bool hold);

  /// Aborts the current step: drops the gradients of all its microbatches, pending backwards, the order
  /// recorded by an unfinished forward, and unsharded parameters. Afterwards the model is in the state after
  /// a WeightsChange that left the weights as they are: a new step begins with its first forward. It is
  /// needed after an exception in a training forward or in a backward, whose step cannot continue. It is
  /// allowed at any time between steps and passes.
  ///
  /// Collective, and blocks the host: all ranks skip the same batch at the same point. A rank that skips
  /// alone has omitted or added collectives that the other ranks wait for. The communicator's timeout (or its
  /// check of purposes) then ends all ranks.
  /// @throws InvalidArgument inside a forward or backward; ShapeMismatch on every rank when ranks have made
  /// different numbers of steps.
  void reset_step();

  /// Returns an id that grows whenever a step begins: at every WeightsChange, reset_step() and recovered().
  /// Backwards of earlier forwards are then no longer due. Ranks may have different ids.
  uint64_t step() const;

  /// Drops gradients that are final, or still accumulated over microbatches, without a step: of `set`, or of
  /// all parameters. The next backward starts them from zero. Weights, optimizer states, forwards with a
  /// pending backward, unsharded parameters and step counts are unchanged. Without gradients it does nothing.
  /// It writes no memory, except between the microbatches of a step for parameters of a set that shares
  /// buffers with others. Not collective, but all ranks must call it alike; the next comparison of served()
  /// checks this.
  /// @throws InvalidArgument inside a forward or backward, and when an exception has ended the step (use
  /// reset_step()).
  void zero_grad(UpdateSet* set = nullptr);

  /// Freezes or thaws these trainable parameters from now on. A frozen parameter has no gradient, and
  /// backward does not require one. Optimizers leave it and its state unchanged, bit for bit; the gradient
  /// norm excludes it. Call it between steps, on all ranks alike; the next comparison of served() checks
  /// this. It is cheap.
  /// @throws InvalidArgument inside a forward or backward, while a backward is pending or the step has
  /// gradients, and for parameters that freeze() has excluded from training.
  void set_frozen(const std::vector<Parameter>& params, bool frozen);
  /// Returns a description of the state of the current step that a change of weights or set_frozen() would
  /// lose now; "" between steps.
  std::string pending() const;

  /// Throws ShapeMismatch on every rank, with `otherwise` and the ranks that differ, unless all ranks of the
  /// mesh pass the same value. Collective; blocks the host, but does not wait for training operations.
  void require_equal(uint64_t value, const std::string& otherwise);
  /// Adds a value to served(): one that all ranks should share and no collective compares at once, such as a
  /// learning rate.
  void note_alike(uint64_t value);
  /// Returns a digest of the purposes of this rank's collectives and of the values of note_alike(), for the
  /// next all-reduce that includes it.
  uint64_t served() const;
  /// Returns whether this step should compare served() although none of its all-reduces spans all ranks. True
  /// in every 64th step, so that diverged ranks are detected without a collective in each step.
  bool comparison_due();
  /// Set by the device when an all-reduce has shown that the ranks' collectives served different purposes.
  /// Shared with the operations that compare.
  const std::shared_ptr<std::atomic<bool>>& ranks_apart() const;

  /// Checks that the last microbatch's backward of the root has ended since the latest WeightsChange and has
  /// reached parameters of `set` (null: any). Completes gradients that only waited for recorded forwards which have been
  /// dropped since; it is collective then.
  /// @throws InvalidArgument naming `who` otherwise; CommError once ranks_apart().
  void require_gradients(const char* who, const UpdateSet* set = nullptr);
  /// Checks that every trainable parameter is in an UpdateSet. @throws InvalidArgument naming `who` and all
  /// that are not.
  void require_all_in_sets(const char* who) const;
  /// Returns the sets, for making an UpdateSet.
  const std::shared_ptr<UpdateSets>& update_sets() const { return sets_; }
  /// Makes the compute stream wait until all reductions queued so far are done.
  void wait_gradients();
  /// Returns the skip flag of this step's gradients: i64 [1] on the device, equal on every rank once the
  /// compute stream has reached this point. 1: some gradient is non-finite and the step must be skipped; else
  /// 0. Undefined when the gradients were not checked since the last step (clip_grad_norm() checks them).
  const Tensor& skip() const { return skip_; }
  /// Sets the flag, also for all sets with final gradients.
  void set_skip(const Tensor& skip);
  /// Returns when the compute stream has written the master weights and optimizer states that this step begins with.
  const Event& state_ready() const;
  /// Protects weights and optimizer states that are read elsewhere until `event` (for example by a snapshot).
  /// The next WeightsChange waits for it. All later operations on the compute stream wait for it where the
  /// model has buffers, since a forward may write them.
  void hold_weights(const Event& event) {
    held_ = event;
    if (!kept_.empty()) device_.compute().wait(event);
  }

  /// Declares that all weights were rewritten on all ranks, for example from a checkpoint; diverged ranks are
  /// consistent again, and averages of weights restart (OptimizerOptions::ema_decay). Call it on every rank at the same point, with
  /// nothing of the model queued.
  void weights_replaced();

  /// @throws InvalidArgument naming `who` after an exception ended a started update
  /// (WeightsChange::begin_update()), until weights_replaced().
  void require_whole_weights(const char* who) const;

  /// Declare that other weights are in the place of the trained ones from here on, and that these are restored, or lost (Averaged). In
  /// between, require_trained_weights() and all training throw, and recovered() reports the substitution as a cut off update.
  void begin_substitution();
  void end_substitution(bool restored);
  /// @throws InvalidArgument naming `who` during a substitution.
  void require_trained_weights(const char* who) const;

  /// Begins a new step with the present weights after Communicator::recover(), on every rank. Unsharded
  /// parameters and gradients are dropped, and nothing waits for operations queued before. Collective, and
  /// blocks the host.
  /// @throws Error on every rank when the failure cut off an update of the weights, or came after it on some
  /// ranks and before it on others. The weights are then of no consistent step; load a checkpoint.
  void recovered();

  /// Returns a human-readable description of the memory of the units' buffers (BufferSet::describe()).
  std::string describe_buffers() const { return buffers_->describe(); }

  /// Returns the model's buffers, by full name.
  const std::vector<Buffer>& buffers_of_model() const { return kept_; }

  /// Returns the events since the last clear, in host issue order: "unshard X", "forward X", "backward X",
  /// "post X".
  const std::vector<std::string>& trace() const;
  void clear_trace();
  void enable_trace(bool on);

 private:
  friend class WeightsChange;

  /// Records that an exception ended an update and a part of the weights has changed.
  void weights_torn() noexcept;

  /// Makes plan, units, buckets and memory, and fills the shards (detail/builder.cpp). Collective.
  class Builder;
  void build(ModuleBase& root);
  /// Completes the root's last backward: every trainable parameter has its gradient, and every unit reduces.
  bool complete_backward();
  /// Runs one backward of the unit without gradients of its own.
  void empty_backward(Unit& unit);
  bool has_gradients() const;
  /// Returns a parameter of `set` (null: of any) whose gradients, final or accumulated, are not dropped yet;
  /// or null.
  const Parameter* reached_by_backward(const UpdateSet* set) const;
  /// Returns why gradients of `set` (null: of any parameter) are not final.
  std::string why_not_final(const UpdateSet* set) const;
  /// Drops the step of all units; with a set, its gradients alone.
  void drop_step(UpdateSet* set);
  void forget_gradients(UpdateSet* set);
  /// Begins a change; `set` null: of all parameters.
  void begin_change(WeightsChange& change, UpdateSet* set);
  /// Ends a change; `whole`: it was not cut off. Does nothing unless `change` is the open one.
  void end_change(WeightsChange& change, UpdateSet* set, bool whole);
  /// Begins a new step: master weights may differ from here on in the compute stream's order.
  void begin_step(UpdateSet* set);

  Device& device_;
  DeviceMesh mesh_;
  FullyShardOptions options_;
  RootOptions root_options_;
  ModelPlan plan_;
  std::vector<std::shared_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Buffer> kept_;            // buffers, which are not trained
  std::unique_ptr<BufferSet> buffers_;  // of slots, staging and groups
  int exceptions_before_ = std::uncaught_exceptions();

  uint64_t steps_ = 0;                    // counts changes of weights and reset_step() since recovered()
  std::unique_ptr<UpdateCount> updates_;  // for recovered()
  WeightsChange* changing_ = nullptr;     // the open one
  std::shared_ptr<UpdateSets> sets_;      // of the optimizers, which may outlive this

  Tensor skip_;
  Event held_;
  std::unique_ptr<RankComparison> comparison_;
  std::unique_ptr<UnitContext> context_;  // last: its streams finish before the buffers are freed
};

}  // namespace sherd
