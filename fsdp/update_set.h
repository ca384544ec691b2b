// Parameters that one optimizer updates.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

class UpdateSets;

/// Trainable parameters of one root whose gradients are used and given up together. A root has one such set
/// for each optimizer: mostly one that holds all its parameters, or the generator's and the discriminator's,
/// say. Gradients become final together (the root's last backward of a step), and each set is done with its
/// own by itself (WeightsChange, ShardRuntime::zero_grad()); units and groups may hold parameters of several
/// sets.
///
/// With several sets a step's backwards may leave out all parameters of a set (the discriminator's pass never
/// reaches the generator): that set then takes no part in the step, its gradients do not travel, and its
/// optimizer cannot step. A set that is reached in part is an error as ever, unless
/// FullyShardOptions::allow_unused. Which sets are left out must be so on every rank; with
/// several sets every step compares which units the ranks used, for which the host waits.
///
/// One rank's thread uses it, in the same order on every rank. It may outlive the root.
class UpdateSet {
 public:
  /// @param sets ShardRuntime::update_sets() of the root.
  /// @param params of the root, trainable.
  /// @throws InvalidArgument naming all parameters that another living set of the root holds.
  UpdateSet(std::shared_ptr<UpdateSets> sets, const std::vector<Parameter>& params);
  ~UpdateSet();
  UpdateSet(const UpdateSet&) = delete;
  UpdateSet& operator=(const UpdateSet&) = delete;

  bool holds(const Parameter& p) const;
  bool holds_some_of(const ParamGroup& group) const { return members_.contains(&group); }
  bool holds_all_of(const ParamGroup& group) const;
  /// By Parameter::index_in_group(); empty when it holds none of the group.
  std::vector<bool> members_of(const ParamGroup& group) const;

  /// The gradients are final, and neither used nor given up yet.
  bool ready() const { return ready_; }
  /// As ShardRuntime::skip(), of this set's gradients.
  const Tensor& skip() const { return skip_; }
  void set_skip(Tensor skip) { skip_ = std::move(skip); }

 private:
  friend class UpdateSets;
  std::shared_ptr<UpdateSets> sets_;
  std::map<const ParamGroup*, std::vector<bool>> members_;
  bool ready_ = false;
  Tensor skip_;
};

/// The living sets of one root, in the order in which they were made. The runtime's.
class UpdateSets {
 public:
  /// `label` begins messages.
  explicit UpdateSets(std::string label) : label_(std::move(label)) {}

  int count() const { return static_cast<int>(all_.size()); }
  /// -1 for none of them.
  int index_of(const UpdateSet* set) const;
  /// Null when there is none.
  const UpdateSet* set_of(const Parameter& p) const;
  bool any_ready() const;
  /// Parameters of these groups that are not frozen and in no set.
  std::vector<std::string> alone(const std::vector<ParamGroup*>& groups) const;

  /// Sets without gradients in a step in which others have some, and sets whose parameters are all frozen. Null stands
  /// for the parameters that are in no set.
  std::vector<const UpdateSet*> left_out(const std::vector<ParamGroup*>& groups) const;
  /// The gradients of all but those are final.
  void set_ready(const std::vector<const UpdateSet*>& but);
  /// For all that are ready.
  void set_skip(const Tensor& skip);
  /// The gradients of `set` (null: of all) are there no more.
  void forget(const UpdateSet* set);

 private:
  friend class UpdateSet;
  std::string label_;
  std::vector<UpdateSet*> all_;
};

}  // namespace sherd
