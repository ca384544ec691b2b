// Routing of parameters to optimizers: data, decided once, printable.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module_base.h>
#include <sherd/optim/algorithm.h>
#include <sherd/optim/role.h>
#include <sherd/optim/update_settings.h>

namespace sherd {

/// Rule for parameters whose full name matches (a NamePattern, fsdp/name_pattern.h).
struct RoutingRule {
  std::string pattern = {};
  /// Their optimizer; unset: the one of their role.
  std::optional<Algorithm> algorithm = {};
  /// Their own learning rate, weight decay and so on: parameter groups, as data.
  UpdateSettings settings = {};
};

struct RoutingOptions {
  /// Default optimizer. One for matrices only, such as muon, gets the hidden matrices, and AdamW everything
  /// else; any other, such as adamw, gets everything.
  Algorithm optimizer = Algorithm::muon;
  /// Overrides; the first match of each parameter applies.
  /// @throws InvalidArgument (from route()) for an invalid pattern, for invalid settings (naming all of them),
  /// for a rule that decides about no parameter, and for a rule that assigns a parameter that is neither a
  /// matrix nor a stack of matrices [count, rows, cols] to Muon or another optimizer for matrices only.
  std::vector<RoutingRule> rules = {};
  /// Names (a NamePattern) that are never assigned to Muon by default, whatever their role; "" =
  /// none.
  std::string not_hidden = {};
};

struct Route {
  std::string name = {};
  Parameter param = {};
  Algorithm algorithm = Algorithm::adamw;
  /// True for two or more dimensions, except a bias (those of a stack of experts have two).
  bool decays = false;
  Role role = Role::hidden;
  /// The rule, or the evidence for the role.
  std::string reason = {};
  UpdateSettings settings = {};
};

/// One route for every trainable parameter, in named_parameters() order.
struct Routing {
  std::vector<Route> routes = {};
  /// ModuleBase::tied_names(): one tensor, one update.
  std::vector<std::pair<std::string, std::string>> tied = {};
  /// Parameters kept from Muon because their name is ambiguous: one line for all layers' parameters of one
  /// name, with the rule that assigns them. Rules settle it.
  std::vector<std::string> warnings = {};
  /// Returns the table that is printed at start, then the warnings.
  std::string format() const;
  /// Returns one line for files: "muon: NAME NAME ...; adamw: NAME ...", then the program's own optimizers
  /// likewise.
  std::string summary() const;

  /// Another optimizer updates the parameters that have no route here.
  bool partial = false;
  /// Returns the routes for which `takes` returns true, for an Optimizer beside others of the same root:
  ///    Optimizer generator(root, routing.part("^generator"), a), critic(root, routing.part("^critic"), b);
  /// @throws InvalidArgument when no route is taken.
  [[nodiscard]] Routing part(const std::function<bool(const Route&)>& takes) const;
  /// Returns the routes whose name matches a NamePattern.
  [[nodiscard]] Routing part(const std::string& pattern) const;
  [[nodiscard]] Routing part(const char* pattern) const { return part(std::string(pattern)); }
  /// Returns the routes of some parameters. @throws InvalidArgument also naming parameters that have no
  /// route.
  [[nodiscard]] Routing part(const std::vector<Parameter>& params) const;
};

/// Routes by rule, else by role (guess_roles()): hidden matrices and stacks of them to Muon, ambiguous ones
/// to AdamW with a warning. Sets each parameter's cut class by its algorithm: Muon's are cut between rows (a
/// stack: between its matrices), AdamW's anywhere. Call it before fully_shard() of the root.
[[nodiscard]] Routing route(ModuleBase& root, const RoutingOptions& options = {});

}  // namespace sherd
