// SOAP's options as the flags spell them.
#pragma once

#include <string>
#include <vector>

#include <sherd/optim/soap.h>

#include "config.h"

namespace train_gpt {

/// Returns what is wrong with the flags of SOAP, one line for each; empty: usable.
std::vector<std::string> soap_problems(const TrainConfig& config);
/// @pre soap_problems() is empty.
sherd::SoapOptions soap_options(const TrainConfig& config);

}  // namespace train_gpt
