// Routing of parameters to optimizers: data, decided once, printable.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module.h>
#include <sherd/optim/algorithm.h>
#include <sherd/optim/role.h>
#include <sherd/optim/update_settings.h>

namespace sherd {

/// What holds for parameters whose full name matches (std::regex, ECMAScript, searched anywhere).
struct RoutingRule {
  std::string pattern = {};
  /// Their optimizer; unset, it is the one that their role gives them.
  std::optional<Algorithm> algorithm = {};
  /// Their own learning rate, weight decay and so on: parameter groups, as data.
  UpdateSettings settings = {};
};

struct RoutingOptions {
  /// One for matrices only, such as muon, gets the hidden matrices, and AdamW everything else; any other,
  /// such as adamw, gets everything.
  Algorithm optimizer = Algorithm::muon;
  /// Overrides; of each parameter the first match alone. @throws InvalidArgument (from route()) for a pattern
  /// that is no regex, for settings that cannot be (all of them named), for a rule that decides about no
  /// parameter, or that sends something to Muon, or to another one for matrices only, that is neither a
  /// matrix nor a stack of matrices [count, rows, cols].
  std::vector<RoutingRule> rules = {};
  /// Names (a regex, searched anywhere) that never go to Muon by default, whatever their role; "" = none.
  std::string not_hidden = {};
};

struct Route {
  std::string name = {};
  Parameter param = {};
  Algorithm algorithm = Algorithm::adamw;
  /// Of two or more dimensions and not a bias (those of a stack of experts have two).
  bool decays = false;
  Role role = Role::hidden;
  /// The rule, or the evidence for the role.
  std::string reason = {};
  UpdateSettings settings = {};
};

/// One route for every trainable parameter, in named_parameters() order.
struct Routing {
  std::vector<Route> routes = {};
  /// Module::tied_names(): one tensor, one update.
  std::vector<std::pair<std::string, std::string>> tied = {};
  /// What was kept from Muon because its name leaves open what it is: one line for all layers' parameters of
  /// one name, with the rule that says otherwise. Rules settle it.
  std::vector<std::string> warnings = {};
  /// The table that is printed at start, then the warnings.
  std::string format() const;
  /// One line for files: "muon: NAME NAME ...; adamw: NAME ...", then the program's own optimizers alike.
  std::string summary() const;

  /// Somebody else updates the parameters that have no route here.
  bool partial = false;
  /// The routes for which `takes` holds, for an Optimizer beside others of the same root:
  ///     Optimizer generator(root, routing.part("^generator"), a), critic(root, routing.part("^critic"), b);
  /// @throws InvalidArgument when that is none.
  Routing part(const std::function<bool(const Route&)>& takes) const;
  /// Those whose name matches a regular expression (std::regex, ECMAScript, searched anywhere).
  Routing part(const std::string& pattern) const;
  Routing part(const char* pattern) const { return part(std::string(pattern)); }
  /// Those of some parameters. @throws InvalidArgument also naming parameters that have no route.
  Routing part(const std::vector<Parameter>& params) const;
};

/// Decides by rule, else by role (guess_roles()): hidden matrices and stacks of them to Muon, where in doubt
/// AdamW with a warning. Gives each parameter its algorithm's cut class: Muon's are cut between rows (a
/// stack: between its matrices), AdamW's anywhere. Call it before fully_shard() of the root.
Routing route(ModuleBase& root, const RoutingOptions& options = {});

}  // namespace sherd
