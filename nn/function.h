// User-defined operations.
#pragma once

#include <functional>
#include <vector>

#include <sherd/nn/tape.h>

namespace sherd::nn {

/// One operation of the caller's own: `forward` computes the output from the inputs' tensors, `backward` the
/// inputs' gradients from the output's. Both queue their work on the compute stream; what backward needs it
/// captures. For example y = x^2, whose derivative is 2 x dy:
///
///     Var square(const Var& x) {
///       return nn::function({x},
///           [&](Stream& s) { Tensor y = ...; my_square(s, y, x.value()); return y; },
///           [t = x.value()](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
///             Tensor dx = ...;
///             my_square_backward(s, dx, call.output().tensor(t), t);
///             return {dx};
///           });
///     }
///
/// A parameter in it is used by data() in forward and by grad_for_overwrite() or grad() in backward, inside the
/// forward of a module below the one that was wrapped with it; name it in `parameters`, so that the operation is
/// recorded although no input needs a gradient, or is on a tape at all. While it is frozen() it has no gradient, and
/// `backward` asks for none.
/// @param name for errors: by default the function that contains the call. A string literal
/// @throws InvalidArgument for inputs on two tapes; ShapeMismatch naming the inputs' shapes and the parameters, when
/// `forward` or `backward` throws it.
Var function(const std::vector<Var>& inputs, const std::function<Tensor(Stream&)>& forward,
             std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
             const std::vector<Parameter>& parameters = {}, const char* name = __builtin_FUNCTION());

/// The same with any number of outputs: the gradient of an unused output is not defined().
std::vector<Var> functions(const std::vector<Var>& inputs,
                           const std::function<std::vector<Tensor>(Stream&)>& forward,
                           std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
                           const std::vector<Parameter>& parameters = {},
                           const char* name = __builtin_FUNCTION());

namespace detail {

/// The tape that records a function of these: that of the first input on one, or else the one that records the forward
/// of a trainable parameter's model. Null without.
Tape* tape_of(const std::vector<Var>& inputs, const std::vector<Parameter>& parameters);

}  // namespace detail

}  // namespace sherd::nn
