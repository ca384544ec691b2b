// Parameters that one optimizer updates.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

class UpdateSets;

/// Trainable parameters of one root whose gradients are used and released together. A root has one set for
/// each optimizer: usually one with all parameters, or for example the generator's and the discriminator's.
/// Gradients become final together (at the root's last backward of a step). Each set releases its own
/// separately (WeightsChange, ShardRuntime::zero_grad()). Units and groups may hold parameters of several
/// sets.
///
/// With several sets a step's backwards may leave out all parameters of a set (the discriminator's pass never
/// reaches the generator). That set then takes no part in the step: its gradients are not sent, and its
/// optimizer cannot step. A set that is reached in part is an error, unless RootOptions::allow_unused.
/// The sets left out must be the same on every rank. With several sets every step compares which units the
/// ranks used, and the host waits for this.
///
/// One rank's thread uses it, in the same order on every rank. It may outlive the root.
class UpdateSet {
 public:
  /// Makes a set.
  /// @param sets ShardRuntime::update_sets() of the root.
  /// @param params of the root, trainable.
  /// @throws InvalidArgument naming all parameters that another existing set of the root holds.
  UpdateSet(std::shared_ptr<UpdateSets> sets, const std::vector<Parameter>& params);
  ~UpdateSet();
  UpdateSet(const UpdateSet&) = delete;
  UpdateSet& operator=(const UpdateSet&) = delete;

  bool holds(const Parameter& p) const;
  bool holds_some_of(const ParamGroup& group) const { return members_.contains(&group); }
  bool holds_all_of(const ParamGroup& group) const;
  /// Returns membership by Parameter::index_in_group(); empty when it holds none of the group.
  std::vector<bool> members_of(const ParamGroup& group) const;

  /// Sets what ShardRuntime::weights_replaced() calls.
  void on_weights_replaced(std::function<void()> f) { weights_replaced_ = std::move(f); }

  /// Returns whether the gradients are final and neither used nor released yet.
  bool ready() const { return ready_; }
  /// Returns the skip flag, as ShardRuntime::skip(), for this set's gradients.
  const Tensor& skip() const { return skip_; }
  void set_skip(Tensor skip) { skip_ = std::move(skip); }
  /// Returns the factor that the next update multiplies the gradients by: f32 [1] on the device; undefined: 1.
  const Tensor& gradient_factor() const { return gradient_factor_; }
  void set_gradient_factor(Tensor factor) { gradient_factor_ = std::move(factor); }

 private:
  friend class UpdateSets;
  std::shared_ptr<UpdateSets> sets_;
  std::map<const ParamGroup*, std::vector<bool>> members_;
  bool ready_ = false;
  Tensor skip_, gradient_factor_;
  std::function<void()> weights_replaced_;
};

/// Existing sets of one root, in the order in which they were made. Used by the runtime.
class UpdateSets {
 public:
  /// `label` begins messages.
  explicit UpdateSets(std::string label) : label_(std::move(label)) {}

  int count() const { return static_cast<int>(all_.size()); }
  /// Returns the set's index, or -1.
  int index_of(const UpdateSet* set) const;
  /// Returns the set that holds p, or null.
  const UpdateSet* set_of(const Parameter& p) const;
  bool any_ready() const;
  /// Returns the parameters of these groups that are not frozen and in no set.
  std::vector<std::string> alone(const std::vector<ParamGroup*>& groups) const;

  /// Returns the sets without gradients in a step in which others have some, and the sets with all parameters
  /// frozen. Null stands for the parameters that are in no set.
  std::vector<const UpdateSet*> left_out(const std::vector<ParamGroup*>& groups) const;
  /// Marks the gradients of all sets except these as final.
  void set_ready(const std::vector<const UpdateSet*>& but);
  /// Sets the flag for all sets that are ready.
  void set_skip(const Tensor& skip);
  /// The same of the factor.
  void set_gradient_factor(const Tensor& factor);
  /// Marks the gradients of `set` (null: of all) as released.
  void forget(const UpdateSet* set);
  /// Calls what the sets' on_weights_replaced() were given.
  void weights_replaced();

 private:
  friend class UpdateSet;
  std::string label_;
  std::vector<UpdateSet*> all_;
};

}  // namespace sherd
