// Bracket around operations that change weights.
#pragma once

namespace sherd {

class ShardRuntime;
class UpdateSet;

/// Between its begin and end(), work on the compute stream may change master weights (Parameter::shard()),
/// model copies (Parameter::model_copy()) and optimizer states:
///
///     WeightsChange change(runtime);
///     adamw.step(stream, lr, skip);
///     change.end();
///
/// The compute stream first waits for this step's reductions, for gathers that still read the weights, and
/// for whoever has asked to hold them (ShardRuntime::hold_weights()). From the end on, whatever was made of
/// the old weights is stale, the gradients are dropped, and the next step begins.
///
/// Of a set, the work changes that set's parameters alone, and only their gradients are dropped: those of other sets
/// stay final until they are used or given up, and their weights stay as they are.
///
/// When an exception comes before end(), the destructor leaves the model usable: gradients are dropped and a
/// new step begins as above, with the weights as the exception has left them, perhaps changed in part. Such a
/// change is none that ended: until another one ends, ShardRuntime::recovered() finds it cut off and asks for
/// a checkpoint.
///
/// Of updates that are wrong in part (some parameters of an optimizer updated, others not) such an exception leaves weights
/// that must not be trained or saved: see begin_update().
///
/// One at a time, on the rank's thread, outside of forwards and backwards, and on all ranks at the same
/// point. ShardRuntime::recovered() closes the one that is open; its end() then does nothing.
class WeightsChange {
 public:
  /// @throws InvalidArgument while another change of these weights is open.
  explicit WeightsChange(ShardRuntime& runtime) : WeightsChange(runtime, nullptr) {}
  /// Of the parameters of `set` alone, which belongs to the same root and outlives this.
  WeightsChange(ShardRuntime& runtime, UpdateSet& set) : WeightsChange(runtime, &set) {}
  ~WeightsChange();
  WeightsChange(const WeightsChange&) = delete;
  WeightsChange& operator=(const WeightsChange&) = delete;

  /// From here on, an exception before end() leaves weights of no step. Until ShardRuntime::weights_replaced(), which loading
  /// a checkpoint calls, training, steps, saves and exports then throw (ShardRuntime::require_whole_weights()).
  void begin_update() { in_update_ = true; }
  void end();

 private:
  WeightsChange(ShardRuntime& runtime, UpdateSet* set);

  ShardRuntime* runtime_;  // null once it has ended
  UpdateSet* set_;         // null: all parameters
  bool in_update_ = false;
};

}  // namespace sherd
