// A unit: what is gathered together, and when.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/group.h>

namespace sherd {

class ShardRuntime;

/// The parameters that one fully_shard() call claimed, in one ParamGroup for each (trainable, ignored) kind;
/// under whole_param the trainable CutClass::row ones (Muon's matrices) have one of their own, and only that
/// is not ragged.
///
/// The verbs are public: sherd's Module is one client of them. A client calls, on one thread and in the same
/// order on every rank: pre_forward, forward work, post_forward; pre_backward, backward work, post_backward;
/// or the single verbs unshard, wait, reshard. "Work" is queued on the device's compute stream.
class Unit {
 public:
  Unit(ShardRuntime& runtime, std::string name, int index, bool root);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Full name of the wrapped module; "root" for the root.
  const std::string& name() const { return name_; }
  /// Position in registration order among the units that are not the root; -1 for the root.
  int index() const { return index_; }
  bool root() const { return root_; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }
  bool unsharded() const { return unsharded_ && !stale_; }

  /// Brings weights that an optimizer step changed to where they rest, on the gather stream (under the
  /// strategies that keep parameters whole, that is their gather). unshard() does it when needed.
  void sync();
  /// Starts gathering the whole parameters on the gather stream, if they are not whole and current already.
  /// @throws NotSupported when the gather slot is held by another unit that is in use.
  void unshard();
  /// The compute stream waits until the whole parameters are there.
  void wait();
  /// Gives the whole parameters back (when the strategy shards them at rest). Work queued so far may use
  /// them.
  void reshard();

  void pre_forward(bool training);
  void post_forward();
  void pre_backward();
  /// Reduces what backward added to the gradients while later work goes on, and reshards. The root's, in the
  /// last microbatch, makes the compute stream wait for all reductions.
  void post_backward();

 private:
  friend class ShardRuntime;
  void finish_gradients();

  ShardRuntime& runtime_;
  std::string name_;
  int index_;
  bool root_;
  bool reshard_after_forward_ = true;
  int height_ = 0;  // levels of units inside: units of one height are never in use together
  int ring_ = 0;    // position among the units of this height: those share their slots in turn
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  int64_t slot_elements_ = 0, grad_slot_elements_ = 0;
  int slot_ = -1, grad_slot_ = -1;  // into the runtime's tables

  bool unsharded_ = false;
  bool in_use_ = false;    // between pre_ and post_
  bool stale_ = true;      // master weights are newer than what rests
  bool finished_ = false;  // gradients of this step are final
  int due_ = 0;            // forwards whose backward has not come yet
  Event ready_;
};

}  // namespace sherd
