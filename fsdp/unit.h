// FSDP unit: parameters that are unsharded together, and the schedule of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/prefetch_order.h>
#include <sherd/fsdp/slots.h>

namespace sherd {

class Bucket;
struct UnitContext;
class UpdateSet;

/// Precision of the arguments and results of modules whose forward a tape records (FullyShardOptions).
struct CallPrecision {
  std::optional<DType> inputs, outputs;  // dtype to cast to; nullopt: unchanged
};

/// Parameters that one fully_shard() call claimed, in one ParamGroup for each (trainable, ignored) kind.
/// Under whole_param the trainable CutClass::row parameters (Muon's matrices) have a group of their own; only
/// that group is not ragged. Where weights are stored unsharded, these are in buckets that several units
/// share instead (BucketPlan). A parameter in a bucket is used as any other of its unit, and its unit waits
/// for its own buckets alone. Its gradient is summed over ranks when the backwards of all units of the bucket
/// have ended.
///
/// The verbs are public; the tape is one client of them. A client calls, on one thread and in the same order
/// on every rank: pre_forward, forward operations, post_forward; pre_backward, backward operations,
/// post_backward; or the single verbs unshard, wait, reshard. Operations are queued on the device's compute
/// stream. After an exception in the operations, call cancel_forward or cancel_backward in place of post_.
///
/// Uses may nest, including those of one unit (a module that calls itself, or that two wrapped modules call):
/// the outermost backward reduces. A forward inside the backward of any unit is a recomputation for a pending
/// backward. It adds no backward, is not part of the recorded order, and leaves the parameters unsharded for
/// that backward.
///
/// Every verb throws InvalidArgument once the root, and with it the runtime, is destroyed.
class Unit {
 public:
  struct Spec {
    std::string name;  // full name of the wrapped module; "root" for the root
    int number = 0;    // index in the runtime's list of units, of which the root is the last
    bool root = false;
    bool reshard_after_forward = true;
    int height = 0;  // levels of units inside
    CallPrecision precision = {};
    std::vector<std::unique_ptr<ParamGroup>> groups = {};
    std::vector<Parameter> params = {};  // all that the call claimed
    std::vector<Bucket*> buckets = {};   // buckets that hold some of them, and outlive every use until
                                         // detach()
  };
  /// `context` outlives every use until detach().
  Unit(UnitContext& context, Spec spec);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Returns the full name of the wrapped module; "root" for the root.
  const std::string& name() const { return name_; }
  /// Returns the index in registration order among the units that are not the root; -1 for the root.
  int index() const { return root_ ? -1 : number_; }
  bool root() const { return root_; }
  /// Returns the levels of units inside this one. Units of one height are never in use together, unless
  /// several wrapped modules call one.
  int height() const { return height_; }
  /// Returns the groups of this unit alone. Buckets that hold parameters of it are among
  /// ShardRuntime::groups().
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }
  /// Returns all claimed parameters, including those in buckets.
  const std::vector<Parameter>& params() const { return params_; }
  const CallPrecision& precision() const { return precision_; }
  bool unsharded() const { return unsharded_ && !stale_; }
  /// Returns false once the root is destroyed: the unit then has no groups.
  bool attached() const { return context_ != nullptr; }
  /// Returns whether the last microbatch's backward has ended, so that gradients are final, and some are not
  /// released.
  bool finished() const { return finished_; }
  /// Returns an id that changes with each change of weights and reset_step(). Backwards of earlier forwards are then no
  /// longer due.
  uint64_t step() const;

  /// Copies weights that an optimizer step changed to the stored weights, on the gather stream (under the
  /// strategies that keep parameters unsharded, this gathers them). unshard() calls it when needed.
  void sync();
  /// Starts gathering the unsharded parameters on the gather stream, unless they are unsharded and current
  /// already.
  /// @throws OutOfMemory when the unit needs a gather buffer of its own (RootOptions::prefetch) that
  /// does not fit.
  void unshard();
  /// Makes the compute stream wait until the unsharded parameters are complete.
  void wait();
  /// Reshards the parameters (when the strategy stores them sharded). Operations queued so far may use them.
  void reshard();

  /// Begin and end uses of the unit. Any number of recorded forwards may precede their backwards, including
  /// the root's. Each is followed by one backward or by drop_backward() while step() is unchanged, and by
  /// neither afterwards. A recomputed one comes directly before its backward.
  /// @param how_to_drop for errors, of recorded forwards: what a user of the client does to drop one without
  /// a backward
  /// @throws InvalidArgument: pre_ verbs when an exception has ended the step (ShardRuntime::reset_step());
  /// post_ verbs when the innermost use is not of their kind; the root's post_ verbs when another unit's use
  /// has not ended, since its gradients would be left out.
  void pre_forward(ForwardKind kind, const char* how_to_drop = "run its backward, or call drop_backward()");
  /// Sets the recorder of this unit's running forward or backward, for functions with parameters of the model. Returns the
  /// previous one (or null), which the caller restores at the end.
  ForwardRecorder* exchange_recorder(ForwardRecorder* recorder) noexcept;
  ForwardRecorder* recorder() const noexcept;
  /// Returns the number of ranks that share this model's sequences (FullyShardOptions::context_dim of the root).
  int context_ranks() const;
  /// Notes that an attention of this model has exchanged heads over these ranks. Where several ranks share sequences, the last
  /// backward of a step without a note throws.
  void note_whole_sequences();
  void post_forward();
  void pre_backward();
  /// Reduces the gradients that backward added, while later operations continue, and reshards. In the last
  /// microbatch the root's call makes the compute stream wait for all reductions. Where gradients are held
  /// until then (ShardRuntime::set_hold_gradients()) they stay open instead, as if suspended.
  /// @param reduce false suspends: a further backward of this unit follows in the same pass. Its gradients stay
  /// open in a buffer that no other unit gets meanwhile; a unit that needs one gets an additional buffer,
  /// which the model then keeps. The last backward reduces all gradients at once. The weights stay unsharded
  /// until another unit needs their memory.
  void post_backward(bool reduce = true);
  /// Drops the pending backward of a recorded forward because no gradient of its results was requested.
  /// @param reduce true: no further backward of the unit comes in this pass; gradients that suspended ones
  /// left open are reduced now.
  void drop_backward(bool reduce = false);
  /// Marks the step as ended by an exception in a pass through this unit while none of its uses was open. It
  /// does not continue without ShardRuntime::reset_step().
  void break_step() noexcept;
  /// Returns whether gradients of suspended backwards are open, and not those of earlier microbatches alone.
  bool suspended() const { return gradients_open_ && !held_; }
  /// Ends the innermost use without a result: buffers are released after the operations queued so far. The
  /// step's gathers and reductions remain until ShardRuntime::reset_step(), without which the step does not
  /// continue. After a forward in evaluation mode no reset is needed.
  void cancel_forward() noexcept;
  void cancel_backward() noexcept;

  // Functions for the runtime. No client calls these.

  /// Allocates memory of the unit's own for its unsharded parameters, where the strategy shards them, and keeps them in it
  /// from their next unshard() until release(): reshard() has no effect then. @throws OutOfMemory, InvalidArgument while the
  /// unit is in use.
  void keep();
  void release() noexcept;
  bool kept() const { return kept_.defined(); }
  /// Prefetches the unit: unshard(), unless another unit holds the buffer.
  void prefetch();
  /// Drops the step: reshards the parameters, and gradients start from zero (with a set: its own gradients
  /// alone).
  void drop_step(const UpdateSet* set);
  /// Drops the gradients alone.
  void release_gradients(const UpdateSet* set);
  /// Marks all copies of the master weights as stale.
  void weights_changed();
  /// Drops all events after a failure: nothing queued before runs any more, and nothing waits for it.
  void recovered();
  /// Detaches the unit from the destroyed root and its buffers.
  void detach();

 private:
  UnitContext& context() const;
  /// Reduces after the last backward of a pass.
  void reduce_gradients();
  /// Gathers the predicted units while the use that has begun waits for its own weights. When that fails, the
  /// use has not begun.
  void gather_ahead(const std::vector<int>& units);
  /// Queues the gathers of new weights that are stored unsharded, of all units in the order of their
  /// forwards. They need no buffer of another unit, and a bucket is too large to be gathered during the
  /// single unit before it.
  void sync_ahead();
  void require_use(bool backward, const char* verb) const;
  /// Checks at the end of the root's outermost use that no unit is still in use.
  void require_others_ended(const char* verb) const;
  void open_gradients();
  void finish_gradients(bool last);
  /// Releases the buffer of unreduced gradients to other units after `free`.
  void close_gradients(const Event& free);

  UnitContext* context_;  // null once the root is destroyed
  std::string name_;
  int number_;
  bool root_;
  bool reshard_after_forward_;
  int height_;
  CallPrecision precision_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::vector<Parameter> params_;
  std::vector<Bucket*> buckets_;

  SlotPool::Lease whole_, gradients_;
  Tensor kept_;  // bytes in place of whole_, between keep() and release()
  bool gradients_open_ = false;
  bool held_ = false;  // they are open for further microbatches
  bool unsharded_ = false;
  bool stale_ = true;      // master weights are newer than the stored weights
  bool finished_ = false;  // gradients of this step are final
  Event ready_;            // on gather: the unsharded parameters are complete
};

}  // namespace sherd
