// Bucket: matrices of several units, with one reduction of gradients and one gather of new weights. Private
// to fsdp/.
#pragma once

#include <memory>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/slots.h>

namespace sherd {

struct UnitContext;
class UpdateSet;

/// One ParamGroup whose parameters belong to several units (BucketPlan). The units report their uses to it.
/// Weights are updated for the first unit that needs them. Gradients are open from the first backward of a
/// pass among the units to the end of the last one, or to the end of the root's for a bucket with a unit that
/// the pass left out.
///
/// A unit whose backward comes twice in a pass before all others have ended is summed here before the ranks
/// are. A unit with a group of its own sums the ranks each time, which may differ in rounding. (Tapes sum
/// first in both cases.)
///
/// Same thread, order and streams as for Unit's verbs.
class Bucket {
 public:
  struct Spec {
    int number = 0;          // index in the model's list
    std::vector<int> units;  // indices of the units whose parameters it holds
    std::unique_ptr<ParamGroup> group;
  };
  /// `context` outlives the bucket.
  Bucket(UnitContext& context, Spec spec);
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  ParamGroup& group() const { return *group_; }

  // Weights.
  /// Copies weights that an optimizer step changed to the stored weights, on the gather stream.
  void sync();
  /// Calls sync() and makes Parameter::data() valid. The compute stream waits for ready() before it reads
  /// them.
  void unshard();
  const Event& ready() const { return ready_; }
  /// Marks all copies of the master weights as stale.
  void weights_changed();

  // Gradients.
  /// Begins a backward of a unit, possibly a further one: the unit has not ended then.
  /// @throws OutOfMemory when another bucket holds the planned buffer, as in a backward of another order than
  /// that of registration, and one more does not fit.
  void unit_begins(int unit);
  /// Reports that no further backward of the unit is known in this pass. Reduces after the last unit's.
  void unit_ended(int unit);
  /// Ends a pass at the end of the root's backward: reduces open gradients, and in the step's last pass all
  /// that take part.
  /// @param last no further pass of the step follows
  void pass_ended(bool last);
  /// Sets whether all parameters are left out of this step (UpdateSets::left_out()).
  void set_left_out(bool left_out);

  // Same as the functions of Unit.
  void drop_step(const UpdateSet* set);
  void release_gradients(const UpdateSet* set);
  void recovered();

 private:
  /// Returns whether unreduced gradients stay open for further microbatches
  /// (ShardRuntime::set_hold_gradients()).
  bool holds() const;
  /// Opens the unreduced gradients, if they are not open.
  void open();
  void reduce(bool last);
  /// Releases the buffer of unreduced gradients to others after `free`.
  void close(const Event& free);

  UnitContext& context_;
  int slot_user_;  // index in the pool of gradients' slots, after the units
  std::vector<int> units_;
  std::vector<bool> ended_;  // by index in units_
  std::unique_ptr<ParamGroup> group_;
  SlotPool::Lease gradients_;
  bool open_ = false;
  bool held_ = false;      // it is open for further microbatches
  bool finished_ = false;  // gradients of this step are final
  bool left_out_ = false;
  bool stale_ = true;  // master weights are newer than the stored weights
  Event ready_;        // on gather
};

}  // namespace sherd
