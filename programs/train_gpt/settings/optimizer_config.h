// Options of the optimizers and the routing rules as the flags spell them.
#pragma once

#include <string>
#include <vector>

#include <sherd/kernels/device/dtype.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/routing.h>
#include <sherd/train/settings/command_line.h>

#include "settings_values.h"

namespace train_gpt {

/// Returns the dtype that fp32, bf16 or fp16 names.
sherd::DType dtype_named(std::string_view word);
/// Returns what is wrong with the flags of Muon, NorMuon and SOAP and with --route, one line for each; empty: usable.
std::vector<std::string> optimizer_problems(const Settings& settings);
/// Returns a line for the given flags of each optimizer that no parameter goes to. A config file may hold some for later.
std::vector<std::string> idle_optimizer_flags(const Settings& settings, const sherd::GivenFlags& given);
/// Returns whether any parameter may go to this optimizer.
bool uses(const Settings& settings, const std::string& optimizer);
/// Returns the options of all optimizers; those that may have parameters are in `further`.
/// @pre optimizer_problems() is empty.
sherd::OptimizerOptions optimizer_options(const Settings& settings);
/// Returns --optimizer and --route "REGEX=muon;REGEX=adamw;...". @pre as above.
sherd::RoutingOptions routing_options(const Settings& settings);

}  // namespace train_gpt
