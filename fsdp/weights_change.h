// Bracket around operations that change weights.
#pragma once

namespace sherd {

class ShardRuntime;
class UpdateSet;

/// Bracket for changes of weights. Between its constructor and end(), operations on the compute stream may
/// change master weights (Parameter::shard()), model copies (Parameter::model_copy()) and optimizer states:
///
///    WeightsChange change(runtime);
///    adamw.step(stream, lr, skip);
///    change.end();
///
/// The compute stream first waits for this step's reductions, for gathers that still read the weights, and
/// for holds (ShardRuntime::hold_weights()). From end() on, all copies of the old weights are stale, the
/// gradients are dropped, and the next step begins.
///
/// With a set, the operations change that set's parameters alone, and only their gradients are dropped.
/// Gradients of other sets stay final until they are used or released, and their weights are unchanged.
///
/// When an exception comes before end(), the destructor leaves the model usable: gradients are dropped and a
/// new step begins as above, with the weights as the exception left them, perhaps changed in part. Such a
/// change has not ended: until another one ends, ShardRuntime::recovered() reports it as cut off and requests
/// a checkpoint.
///
/// In an update that must be complete (some parameters of an optimizer updated, others not) such an exception
/// leaves weights that must not be trained or saved: see begin_update().
///
/// One change is open at a time, on the rank's thread, outside forwards and backwards, and on all ranks at
/// the same point. ShardRuntime::recovered() closes the open one; its end() then does nothing.
class [[nodiscard]] WeightsChange {
 public:
  /// @throws InvalidArgument while another change of these weights is open.
  explicit WeightsChange(ShardRuntime& runtime) : WeightsChange(runtime, nullptr) {}
  /// Changes the parameters of `set` alone, which belongs to the same root and outlives this.
  WeightsChange(ShardRuntime& runtime, UpdateSet& set) : WeightsChange(runtime, &set) {}
  ~WeightsChange();
  WeightsChange(const WeightsChange&) = delete;
  WeightsChange& operator=(const WeightsChange&) = delete;

  /// Declares that from here on an exception before end() leaves inconsistent weights. Until
  /// ShardRuntime::weights_replaced(), which loading a checkpoint calls, training, steps, saves and exports
  /// then throw (ShardRuntime::require_whole_weights()).
  void begin_update() { in_update_ = true; }
  void end();

 private:
  WeightsChange(ShardRuntime& runtime, UpdateSet* set);

  ShardRuntime* runtime_;  // null once it has ended
  UpdateSet* set_;         // null: all parameters
  bool in_update_ = false;
};

}  // namespace sherd
