// Assignment of parameters to wrapped modules. Private to fsdp/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/fsdp/group_plan.h>
#include <sherd/fsdp/module_base.h>

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

/// Returns a claim for planning, with its wrap's mesh and options.
/// @param root_options for the fields marked (root)
PlanUnit plan_unit_of(const UnitClaim& claim, int position, int ranks_id,
                      const FullyShardOptions& root_options);

}  // namespace sherd
