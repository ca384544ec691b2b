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

/// One ParamGroup whose parameters belong to several units (BucketPlan). The units tell it of their uses:
/// weights are brought up to date for the first unit that needs them, gradients are open from the first
/// backward of a pass among the units to the end of the last one, or to the end of the root's for a bucket
/// with a unit that the pass left out.
///
/// A unit whose backward comes twice in a pass before all others have ended is summed here before the ranks
/// are; a unit that has a group of its own sums the ranks each time, which may differ in rounding. (Tapes sum
/// first in both cases.)
///
/// The same thread, order and streams as for Unit's verbs.
class Bucket {
 public:
  struct Spec {
    int number = 0;          // position in the model's list
    std::vector<int> units;  // numbers of those whose parameters it holds
    std::unique_ptr<ParamGroup> group;
  };
  /// `context` outlives the bucket.
  Bucket(UnitContext& context, Spec spec);
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  ParamGroup& group() const { return *group_; }

  // Weights.
  /// Brings weights that an optimizer step changed to where they rest, on the gather stream.
  void sync();
  /// sync(), and Parameter::data() is valid. Compute has to wait for ready() before it reads them.
  void unshard();
  const Event& ready() const { return ready_; }
  /// The master weights are newer than whatever was made of them.
  void weights_changed();

  // Gradients.
  /// The backward of a unit begins, once more perhaps: it has not ended then. @throws OutOfMemory when another bucket holds the planned buffer, as in a
  /// backward of another order than that of registration, and there is no room for one more.
  void unit_begins(int unit);
  /// No further backward of the unit comes in this pass, or none that is known: behind the last unit's,
  /// reduces.
  void unit_ended(int unit);
  /// The root's backward of a pass ends: reduces what is still open, and in the step's last pass what takes
  /// part.
  /// @param last no further pass of the step comes
  void pass_ended(bool last);
  /// None of the parameters takes part in this step (UpdateSets::left_out()), or some do.
  void set_left_out(bool left_out);

  // As the functions of Unit.
  void drop_step(const UpdateSet* set);
  void release_gradients(const UpdateSet* set);
  void recovered();

 private:
  /// Whole gradients stay open for further microbatches (ShardRuntime::set_hold_gradients()).
  bool holds() const;
  /// Whole gradients are there, from now on where they were not.
  void open();
  void reduce(bool last);
  /// The buffer of whole gradients is free for others after `free`.
  void close(const Event& free);

  UnitContext& context_;
  int slot_user_;  // in the pool of gradients' slots, behind the units
  std::vector<int> units_;
  std::vector<bool> ended_;  // by place in units_
  std::unique_ptr<ParamGroup> group_;
  SlotPool::Lease gradients_;
  bool open_ = false;
  bool held_ = false;      // it is: for further microbatches
  bool finished_ = false;  // gradients of this step are final
  bool left_out_ = false;
  bool stale_ = true;  // master weights are newer than what rests
  Event ready_;        // on gather
};

}  // namespace sherd
