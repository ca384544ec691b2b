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

/// Of what modules with their forward on a tape take and return (FullyShardOptions).
struct CallPrecision {
  std::optional<DType> inputs, outputs;  // cast to; as they are without
};

/// The parameters that one fully_shard() call claimed, in one ParamGroup for each (trainable, ignored) kind;
/// under whole_param the trainable CutClass::row ones (Muon's matrices) have one of their own, and only that
/// is not ragged. Where weights rest whole, those lie in buckets that several units share instead (BucketPlan): such a
/// parameter is used as any other of its unit, its unit waits for its buckets alone, but its gradient is summed over
/// ranks when the backwards of all units of the bucket have ended.
///
/// The verbs are public: sherd's Module is one client of them. A client calls, on one thread and in the same
/// order on every rank: pre_forward, forward work, post_forward; pre_backward, backward work, post_backward;
/// or the single verbs unshard, wait, reshard. "Work" is queued on the device's compute stream. An exception
/// that ends the work is followed by cancel_forward or cancel_backward in the place of post_; ForwardScope
/// and BackwardScope see to it.
///
/// Uses may be nested, also those of one unit (a module that calls itself, or that two wrapped modules call):
/// the outermost backward reduces. A forward inside the backward of any unit is a recomputation for a
/// backward that is due already: it adds none, is no part of the recorded order, and leaves the parameters
/// whole for that backward.
///
/// Every verb throws InvalidArgument once the root, and with it the runtime, is gone.
class Unit {
 public:
  struct Spec {
    std::string name;  // full name of the wrapped module; "root" for the root
    int number = 0;    // position in the runtime's list of units, of which the root is the last
    bool root = false;
    bool reshard_after_forward = true;
    int height = 0;  // levels of units inside
    CallPrecision precision = {};
    std::vector<std::unique_ptr<ParamGroup>> groups = {};
    std::vector<Parameter> params = {};   // all that the call claimed
    std::vector<Bucket*> buckets = {};    // that hold some of them, and outlive every use until detach()
  };
  /// `context` outlives every use until detach().
  Unit(UnitContext& context, Spec spec);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Full name of the wrapped module; "root" for the root.
  const std::string& name() const { return name_; }
  /// Position in registration order among the units that are not the root; -1 for the root.
  int index() const { return root_ ? -1 : number_; }
  bool root() const { return root_; }
  /// Levels of units inside this one: units of one height are never in use together, unless several wrapped
  /// modules call one.
  int height() const { return height_; }
  /// Of this unit alone; the others that hold parameters of it are the runtime's (ShardRuntime::groups()).
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }
  /// All that were claimed, also those in buckets.
  const std::vector<Parameter>& params() const { return params_; }
  const CallPrecision& precision() const { return precision_; }
  bool unsharded() const { return unsharded_ && !stale_; }
  /// False once the root is gone: the unit has no groups any more.
  bool attached() const { return context_ != nullptr; }
  /// The last microbatch's backward has ended, so that this step's gradients are final, and not all are released.
  bool finished() const { return finished_; }

  /// Brings weights that an optimizer step changed to where they rest, on the gather stream (under the
  /// strategies that keep parameters whole, that is their gather). unshard() does it when needed.
  void sync();
  /// Starts gathering the whole parameters on the gather stream, if they are not whole and current already.
  /// @throws OutOfMemory when the unit needs a gather buffer of its own (FullyShardOptions::prefetch) and
  /// there is no room.
  void unshard();
  /// The compute stream waits until the whole parameters are there.
  void wait();
  /// Gives the whole parameters back (when the strategy shards them at rest). Work queued so far may use
  /// them.
  void reshard();

  /// The pre_ verbs @throw InvalidArgument when an exception has ended the step (ShardRuntime::reset_step());
  /// the post_ verbs when no use of their kind is the innermost, and the root's when another unit's use has
  /// not ended: that unit's gradients would be left out.
  void pre_forward(bool training) { begin_forward(training, ForwardKind::single); }
  /// A forward in training mode that a tape records. Any number may come before their backwards, the root's,
  /// too: it gives up none of an earlier one. Each is followed by one backward or by give_up_backward().
  void pre_recorded_forward() { begin_forward(true, ForwardKind::recorded); }
  /// The same forward again, right before its backward, which is due already.
  void pre_recomputed_forward() { begin_forward(true, ForwardKind::recomputed); }
  void post_forward();
  void pre_backward();
  /// Reduces what backward added to the gradients while later work goes on, and reshards. The root's, in the
  /// last microbatch, makes the compute stream wait for all reductions. Where gradients are held until then
  /// (ShardRuntime::set_hold_gradients()) they stay open instead, as if suspended.
  void post_backward() { end_backward(true); }
  /// The same when a further backward of this unit comes in the same pass: its gradients stay open, in a buffer
  /// that no other unit gets meanwhile (who needs one gets a buffer more, which the model then keeps), and the
  /// last backward reduces all of it at once. The weights stay whole as long as nobody needs their memory.
  void suspend_backward() { end_backward(false); }
  /// The backward of a recorded forward will not come, for nobody asked for a gradient of what it returned.
  /// @param reduce: no further backward of the unit comes in this pass, so that what suspended ones have left
  /// open is reduced now.
  void give_up_backward(bool reduce);
  /// An exception has ended a pass through this unit while none of its uses was open: the step does not go on
  /// without ShardRuntime::reset_step().
  void break_step() noexcept;
  /// Gradients of suspended backwards are open, and not those of earlier microbatches alone.
  bool suspended() const { return gradients_open_ && !held_; }
  /// Ends the innermost use without a result: buffers are given back behind the work queued so far. What the
  /// step has gathered or reduced until then is left to ShardRuntime::reset_step(), without which the step
  /// does not go on; after a forward in evaluation mode there is nothing to reset.
  void cancel_forward() noexcept;
  void cancel_backward() noexcept;

  // What the runtime tells a unit. No client calls these.

  /// The unit's gathers will be needed soon: unshard(), unless that has to take the buffer from whoever has
  /// it.
  void prefetch();
  /// Gives up the step: whole parameters are given back, gradients start from zero (of a set: its own alone).
  void drop_step(const UpdateSet* set);
  /// The gradients alone.
  void release_gradients(const UpdateSet* set);
  /// The master weights are newer than whatever was made of them.
  void weights_changed();
  /// Nothing that was queued runs any more, and nobody waits for it.
  void recovered();
  /// The root is gone, and the buffers with it.
  void detach();

 private:
  UnitContext& context() const;
  void begin_forward(bool training, ForwardKind kind);
  void end_backward(bool reduce);
  /// Of the last backward of a pass.
  void reduce_gradients();
  /// Gathers what is predicted, while the use that has begun waits for its own weights. When that fails the
  /// use has not begun.
  void gather_ahead(const std::vector<int>& units);
  /// Queues the gathers of new weights that rest whole, of all units in the order of their forwards: they need no
  /// buffer that another unit has, and a bucket is too large to be gathered beside the one unit before it.
  void sync_ahead();
  void require_use(bool backward, const char* verb) const;
  /// Of the root's outermost use: nothing of the model is still in use when it ends.
  void require_others_ended(const char* verb) const;
  void open_gradients();
  void finish_gradients(bool last);
  /// The buffer of whole gradients is free for others after `free`.
  void close_gradients(const Event& free);

  UnitContext* context_;  // null once the root is gone
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
  bool gradients_open_ = false;
  bool held_ = false;  // they are: for further microbatches
  bool unsharded_ = false;
  bool stale_ = true;      // master weights are newer than what rests
  bool finished_ = false;  // gradients of this step are final
  Event ready_;            // on gather: the whole parameters are there
};

/// One forward of a unit: pre_forward() now, post_forward() at end(); cancel_forward() when end() was not
/// reached.
class ForwardScope {
 public:
  ForwardScope(Unit& unit, bool training) : unit_(&unit) { unit_->pre_forward(training); }
  ~ForwardScope() {
    if (unit_ != nullptr) unit_->cancel_forward();
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  void end() {
    unit_->post_forward();
    unit_ = nullptr;
  }

 private:
  Unit* unit_;
};

/// The same for a backward.
class BackwardScope {
 public:
  explicit BackwardScope(Unit& unit) : unit_(&unit) { unit_->pre_backward(); }
  ~BackwardScope() {
    if (unit_ != nullptr) unit_->cancel_backward();
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;
  void end() {
    unit_->post_backward();
    unit_ = nullptr;
  }

 private:
  Unit* unit_;
};

}  // namespace sherd
