// Values of parameters and constants.
#pragma once

#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns a parameter as a value for any expression; Var(p) and arithmetic with p call it. The value is a
/// copy in the compute dtype, because the parameter's own memory is invalid after its unit has resharded: for
/// large matrices use linear(). Backward adds to the parameter's gradient. Recorded inside the recorded
/// forward of the parameter's model.
/// @throws InvalidArgument while its unit is sharded, naming it.
Var value(const Parameter& p);

/// Returns a constant with these elements, rounded to `dtype` (f32, bf16, f64). Arithmetic takes single numbers as
/// they are. @throws ShapeMismatch for another number of values.
Var constants(Device& device, Shape shape, const std::vector<float>& values, DType dtype = DType::f32);

}  // namespace sherd::nn
