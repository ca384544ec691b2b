// Runtime of one sharded model: makes its units, connects their shared state, begins and ends steps.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/model_plan.h>
#include <sherd/fsdp/module.h>
#include <sherd/fsdp/unit.h>
#include <sherd/fsdp/update_set.h>
#include <sherd/fsdp/wrap.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {

class Bucket;
struct UnitClaim;
struct UnitContext;
class UpdateCount;
class WeightsChange;

/// Made by fully_shard() of the root; owned by the root module. One rank's thread uses it.
class ShardRuntime : public std::enable_shared_from_this<ShardRuntime> {
 public:
  /// Builds the units of every wrapped module below `root`, which is wrapped itself. Collective over the
  /// mesh.
  explicit ShardRuntime(ModuleBase& root);
  /// Runs what is queued; units that others hold are detached. Destroyed by an exception that unwinds the
  /// rank, it aborts the group first, so that no rank waits for another.
  ~ShardRuntime();
  ShardRuntime(const ShardRuntime&) = delete;
  ShardRuntime& operator=(const ShardRuntime&) = delete;

  Device& device() const { return device_; }
  const DeviceMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  /// Units in registration order, the root last.
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  /// What was planned for them before anything was allocated.
  const ModelPlan& plan() const { return plan_; }
  /// Every ParamGroup of every unit, in that order, then those of buckets that span units (ModelPlan::buckets).
  std::vector<ParamGroup*> groups() const;

  /// Whether the coming backward is the last of the step: only then are gradients brought to their final
  /// placement. True unless told otherwise (gradient accumulation).
  void set_last_microbatch(bool last);
  bool last_microbatch() const;
  /// Whether backwards that are not the last of their step leave whole gradients open instead of reducing them
  /// (GradientSync::last; Accumulate sets both). False unless told otherwise.
  void set_hold_gradients(bool hold);

  /// Gives up the step that runs: gradients of all its microbatches, backwards that are due, the order
  /// recorded by a forward that did not end, whole parameters. After it the model is as after a WeightsChange
  /// that left the weights as they are: a new step begins with its first forward. Needed once an
  /// exception has ended a forward in training mode or a backward, on whose step nothing goes on; allowed at
  /// any time between steps and passes.
  ///
  /// Collective, and blocks the host: all ranks skip the same batch at the same point. One that skips alone
  /// has left out, or has made in excess, collectives that the others wait for: the communicator's timeout
  /// (or its check of what a collective is for) then ends all ranks.
  /// @throws InvalidArgument inside a forward or backward; ShapeMismatch on every rank when ranks have made
  /// different numbers of steps.
  void reset_step();

  /// A number that changes whenever a step begins: with every WeightsChange and reset_step(). Backwards of forwards
  /// from before are not due any more.
  uint64_t step() const { return steps_; }

  /// Gives up gradients that are final, or still summed up over microbatches, without a step: of `set`, or of all
  /// parameters. The next backward starts them from zero. Weights and optimizer states, forwards whose backward is
  /// still to come, whole parameters and counts of steps stay as they are; where there is nothing to give up, nothing
  /// happens. Costs nothing: no memory is written, but in the midst of a step's microbatches for the parameters of a
  /// set which shares buffers with others. Not collective, but to be called on all ranks alike, which the next
  /// comparison of served() checks.
  /// @throws InvalidArgument inside a forward or backward, and when an exception has ended the step: that
  /// takes reset_step().
  void zero_grad(UpdateSet* set = nullptr);

  /// Freezes these trainable parameters from now on, or thaws them: what is frozen has no gradient and is not missed
  /// by backward, and optimizers leave it and its state alone, bit for bit; the norm of gradients is without it.
  /// Between steps, and on all ranks alike, which the next comparison of served() checks. Costs nothing.
  /// @throws InvalidArgument inside a forward or backward, when a backward is still to come or gradients of the step
  /// are there, and for parameters that freeze() has excluded from training.
  void set_frozen(const std::vector<Parameter>& params, bool frozen);
  /// What of the step that runs would be lost if weights or set_frozen() changed now, in words; "" between steps.
  std::string pending() const;

  /// @throws ShapeMismatch on every rank, `otherwise` and the ranks that differ, unless all ranks of the mesh pass
  /// the same value. Collective; blocks the host, but waits for no training work.
  void require_equal(uint64_t value, const std::string& otherwise);
  /// What all ranks ought to have alike and nobody compares at once, such as a learning rate: enters served().
  void note_alike(uint64_t value) { alike_ = hash64(alike_ ^ value, {}); }
  /// A digest of what this rank's collectives have served and of what note_alike() was told, for the next
  /// all-reduce that takes it along.
  uint64_t served() const { return hash64(mesh_.world()->digest() ^ alike_, {}); }
  /// Whether served() ought to be compared in this step although no all-reduce of it spans all ranks: in every
  /// 64th, so that ranks which have parted are found without a collective in each step.
  bool comparison_due();
  /// Set by the device when an all-reduce has told that the ranks' collectives served different things. Shared
  /// with the work that compares.
  const std::shared_ptr<std::atomic<bool>>& ranks_apart() const { return ranks_apart_; }

  /// @throws InvalidArgument naming `who` unless the last microbatch's backward of the root has finished
  /// since the latest WeightsChange, and has reached parameters of `set` (null: whichever it has); CommError once
  /// ranks_apart().
  void require_gradients(const char* who, const UpdateSet* set = nullptr) const;
  /// @throws InvalidArgument naming `who` and all trainable parameters that are in no UpdateSet.
  void require_all_in_sets(const char* who) const;
  /// For making an UpdateSet.
  const std::shared_ptr<UpdateSets>& update_sets() const { return sets_; }
  /// The compute stream waits until all reductions queued so far are done.
  void wait_gradients();
  /// What is known of this step's gradients: i64 [1] on the device, the same on every rank once the compute
  /// stream has come here, 1 when they are not finite somewhere and the step must not be taken, else 0.
  /// Undefined when nobody has looked since the last step (clip_grad_norm() does).
  const Tensor& skip() const { return skip_; }
  /// For all sets whose gradients are final, too.
  void set_skip(const Tensor& skip);
  /// Weights and optimizer states are read elsewhere until `event` (a snapshot, say): the next WeightsChange
  /// waits for it, and all later work on the compute stream where the model has buffers, which a forward may write.
  void hold_weights(const Event& event) {
    held_ = event;
    if (!kept_.empty()) device_.compute().wait(event);
  }

  /// All weights have been written anew on all ranks, from a checkpoint, say: ranks that had parted have come
  /// together. On every rank at the same point, with nothing of the model queued.
  void weights_replaced();

  /// @throws InvalidArgument naming `who` after an exception has ended an update that had begun
  /// (WeightsChange::begin_update()), until weights_replaced().
  void require_whole_weights(const char* who) const;

  /// After Communicator::recover(), on every rank: begins a step anew with the weights that are there. Whole
  /// parameters and gradients go, and nothing waits for what was queued before. Collective, and blocks the
  /// host.
  /// @throws Error on every rank when the failure cut an update of the weights off, or came after it on some
  /// ranks and before it on others: the weights are then of no step, and a checkpoint has to be loaded.
  void recovered();

  /// What became of the memory of the units' buffers, for people (BufferSet::describe()).
  std::string describe_buffers() const { return buffers_->describe(); }

  /// The model's buffers, by full name.
  const std::vector<Buffer>& buffers_of_model() const { return kept_; }

  /// Events since the last clear, in host issue order: "unshard X", "forward X", "backward X", "post X".
  const std::vector<std::string>& trace() const;
  void clear_trace();
  void enable_trace(bool on);

 private:
  friend class WeightsChange;

  /// An exception has ended an update: a part of the weights has changed.
  void weights_torn() noexcept;

  /// The unit of a claim, its groups built as planned. Collective: makes the communicators of its mesh.
  /// @param number its position in units()
  std::shared_ptr<Unit> make_unit(const UnitClaim& claim, const UnitPlan& plan, int number);
  /// The buckets, as planned. Collective likewise.
  void make_buckets(const std::vector<UnitClaim>& claims);
  GroupComms comms_of(const DeviceMesh& mesh, const ShardAxes& axes);
  void make_slots();
  /// Memory for slots, staging and the buffers of groups.
  void allocate();
  void initialise();
  void check_fingerprints();
  /// Before the root's last backward ends: every trainable parameter has its gradient, and every unit
  /// reduces.
  bool complete_backward();
  bool has_gradients() const;
  /// Why there are no final gradients, of `set` or at all.
  std::string why_not_final(const UpdateSet* set) const;
  /// Of all units, for a new step; the gradients of `set` alone, if there is one.
  void drop_step(UpdateSet* set);
  void forget_gradients(UpdateSet* set);
  /// `set` null: of all parameters.
  void begin_change(WeightsChange& change, UpdateSet* set);
  /// `whole`: nothing cut it off. Does nothing unless `change` is the one that is open.
  void end_change(WeightsChange& change, UpdateSet* set, bool whole);
  /// Master weights may be others from here on in the compute stream's order: a new step begins with them.
  void begin_step(UpdateSet* set);

  Device& device_;
  DeviceMesh mesh_;
  FullyShardOptions options_;
  // By the communicators of the shard group and of the replicas (null without any).
  std::map<std::pair<const Communicator*, const Communicator*>, GroupComms> comms_;
  std::shared_ptr<Communicator> alone_;  // a group of one, for ignored parameters
  ModelPlan plan_;
  std::vector<std::shared_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Buffer> kept_;  // that are not trained
  std::unique_ptr<BufferSet> buffers_;  // of slots, staging and groups
  int exceptions_before_ = std::uncaught_exceptions();

  uint64_t compared_ = 0;                 // steps_ when served() was last found due
  uint64_t steps_ = 0;                    // weights that were changed, and reset_step()
  std::unique_ptr<UpdateCount> updates_;  // for recovered()
  WeightsChange* changing_ = nullptr;     // the one that is open
  std::shared_ptr<UpdateSets> sets_;      // of the optimizers, which may live longer

  Tensor skip_;
  uint64_t alike_ = 0;
  std::shared_ptr<std::atomic<bool>> ranks_apart_ = std::make_shared<std::atomic<bool>>(false);
  Event held_;
  // Comparisons between ranks do not queue behind work that may wait for a rank that went another way.
  std::shared_ptr<Communicator> check_comm_;
  Tensor check_buffer_;
  std::unique_ptr<Stream> check_;
  std::unique_ptr<UnitContext> context_;  // last: its streams finish before the buffers go
};

}  // namespace sherd
