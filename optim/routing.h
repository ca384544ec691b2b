// Which optimizer updates which parameter: data, decided once, printable.
#pragma once

#include <string>
#include <vector>

#include <sherd/fsdp/module.h>

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
  /// Names that never go to Muon by default, although they may be matrices.
  std::string not_hidden =
      R"((^|\.)(tok|pos|wte|wpe|embed\w*|\w*embedding\w*|head|lm_head|output|\w*norm\w*|conv1d|)"
      R"(router|bias)(\.|$))";
};

struct Route {
  std::string name;
  Parameter param;
  Algorithm algorithm = Algorithm::adamw;
  /// Of two or more dimensions and not a bias (those of a stack of experts have two).
  bool decays = false;
  std::string reason;
};

/// One route for every trainable parameter, in named_parameters() order.
struct Routing {
  std::vector<Route> routes;
  /// The table that is printed at start.
  std::string format() const;
  /// One line for files: "muon: NAME NAME ...; adamw: NAME ...".
  std::string summary() const;
};

/// Decides, and gives each parameter its cut class: Muon's are cut between rows (a stack: between its
/// matrices), AdamW's anywhere. Call it before fully_shard() of the root.
Routing route(Module& root, const RoutingOptions& options = {});

}  // namespace sherd
