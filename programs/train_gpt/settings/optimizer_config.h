// Options of the optimizers and the routing rules as the flags spell them.
#pragma once

#include <sherd/dtensor/layout.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/routing.h>

#include "settings_values.h"
#include "train_gpt/settings/setting_rules.h"

namespace train_gpt {

/// Refuses what is wrong with the flags of Muon, NorMuon and SOAP and with --route, and given flags of an optimizer that no
/// parameter goes to.
void check_optimizers(const Settings& settings, const RuleCheck& rules);
/// Returns whether any parameter may go to this optimizer.
bool uses(const Settings& settings, OptimizerWord optimizer);
/// Returns whether any state may rest on the host, and where master weights do. @pre as of optimizer_options().
bool offloads(const Settings& settings);
sherd::Place master_place(const Settings& settings);
/// Returns whether any state may be kept in 8 bits. @pre as of optimizer_options().
bool quantizes_state(const Settings& settings);
/// Returns --layout as the library has it.
sherd::LayoutChoice layout_of(const Settings& settings);
/// Returns the options of all optimizers; those that may have parameters are in `further`.
/// @pre check_optimizers() refuses nothing.
sherd::OptimizerOptions optimizer_options(const Settings& settings);
/// Returns --optimizer and --route "REGEX=muon;REGEX=adamw;...". @pre as above.
sherd::RoutingOptions routing_options(const Settings& settings);

}  // namespace train_gpt
