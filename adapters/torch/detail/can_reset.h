// Modules that reset_parameters() knows.
#pragma once

#include <torch/nn/module.h>

namespace sherd::torch::detail {

/// Returns whether reset_parameters() supports this module.
bool can_reset(::torch::nn::Module& module);

}  // namespace sherd::torch::detail
