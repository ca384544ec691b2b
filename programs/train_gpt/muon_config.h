// Muon's options and the routing rules as the flags spell them.
#pragma once

#include <string>
#include <vector>

#include <sherd/optim/optimizer.h>
#include <sherd/optim/routing.h>

#include "config.h"

namespace train_gpt {

/// What is wrong with the Muon flags and --route, one line for each, flags named; empty = usable.
std::vector<std::string> muon_problems(const TrainConfig& config);
/// Whether any parameter may go to this optimizer.
bool uses(const TrainConfig& config, const std::string& optimizer);
/// @pre muon_problems() is empty.
sherd::MuonOptions muon_options(const TrainConfig& config);
/// --route "REGEX=muon;REGEX=adamw;...".
sherd::RoutingOptions routing_options(const TrainConfig& config);

}  // namespace train_gpt
