// Which optimizer updates which parameter: data, decided once, printable.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module.h>
#include <sherd/optim/role.h>

namespace sherd {

enum class Algorithm { adamw, muon };
const char* name_of(Algorithm a);
/// @throws InvalidArgument listing the legal names.
Algorithm parse_algorithm(std::string_view name);

/// Sends parameters whose full name matches (std::regex, ECMAScript, searched anywhere) to one optimizer.
struct RoutingRule {
  std::string pattern;
  Algorithm algorithm = Algorithm::adamw;
};

struct RoutingOptions {
  /// adamw: everything to AdamW. muon: hidden matrices to Muon, everything else to AdamW.
  Algorithm optimizer = Algorithm::muon;
  /// Overrides, the first match wins. @throws InvalidArgument (from route()) for a pattern that is no regex,
  /// or that sends something to Muon that is neither a matrix nor a stack of matrices [count, rows, cols].
  std::vector<RoutingRule> rules;
  /// Names (a regex, searched anywhere) that never go to Muon by default, whatever their role; "" = none.
  std::string not_hidden;
};

struct Route {
  std::string name;
  Parameter param;
  Algorithm algorithm = Algorithm::adamw;
  /// Of two or more dimensions and not a bias (those of a stack of experts have two).
  bool decays = false;
  Role role = Role::hidden;
  /// The rule, or the evidence for the role.
  std::string reason;
};

/// One route for every trainable parameter, in named_parameters() order.
struct Routing {
  std::vector<Route> routes;
  /// Module::tied_names(): one tensor, one update.
  std::vector<std::pair<std::string, std::string>> tied;
  /// What was kept from Muon because its name leaves open what it is: one line for all layers' parameters of
  /// one name, with the rule that says otherwise. Rules settle it.
  std::vector<std::string> warnings;
  /// The table that is printed at start, then the warnings.
  std::string format() const;
  /// One line for files: "muon: NAME NAME ...; adamw: NAME ...".
  std::string summary() const;
};

/// Decides by rule, else by role (guess_roles()): hidden matrices and stacks of them to Muon, where in doubt
/// AdamW with a warning. Gives each parameter its cut class: Muon's are cut between rows (a stack: between
/// its matrices), AdamW's anywhere. Call it before fully_shard() of the root.
Routing route(Module& root, const RoutingOptions& options = {});

}  // namespace sherd
