// Assignment of parameters to wrapped modules. Private to fsdp/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/fsdp/group_plan.h>
#include <sherd/fsdp/module_base.h>
#include <sherd/fsdp/wrap.h>

namespace sherd {

/// A wrapped module and the parameters that its fully_shard() call claims.
struct UnitClaim {
  ModuleBase* module = nullptr;
  std::string name;  // "root" for the root
  bool root = false;
  int height = 0;  // levels of wrapped modules inside
  std::vector<Parameter> params;
  std::vector<bool> tied;  // by parameter: several modules hold it
};

/// Returns the claims of every wrapped module, in order of registration, the root last. An inner module
/// claims before those around it, and the root takes the rest. A tied parameter that modules outside also
/// hold is left to a common ancestor.
/// @param root is wrapped, and its parameters have their full names.
/// @param registrations modules that hold a parameter
std::vector<UnitClaim> claim_parameters(ModuleBase& root,
                                        const std::function<int(const Parameter&)>& registrations);

/// Returns whether this is a trainable piece over another dimension than the tensor dimension, such as experts.
/// Ranks along that dimension have batches of their own. The gradient of a piece has parts from all of them.
bool sees_other_batches(const Parameter& p, const FullyShardOptions& options);

/// Returns the number of ranks that the root's gradients are averaged over; 0 where a dimension of its mesh is
/// neither data-parallel nor the tensor dimension, so that its ranks may have batches of their own or not.
int gradient_ranks_of(const Wrap& root);

/// Returns a claim for planning, with its wrap's mesh and options. FullyShardOptions::gradient_ranks is the
/// root's where the options leave it to the root.
/// @param root for that, and for the ignored parameters
PlanUnit plan_unit_of(const UnitClaim& claim, int position, int ranks_id, const Wrap& root);

}  // namespace sherd
