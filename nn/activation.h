// Activation functions.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.)
Var gelu(const Var& x);

}  // namespace sherd::nn
