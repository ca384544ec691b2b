// Forwards and backwards of modules as calls of their own, with a tape between them.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <sherd/nn/nn.h>

namespace sherd::test {

/// A tape with the input and the result of the latest forward. Floating-point inputs get a gradient.
struct Taped {
  template <class M>
  Tensor forward(M& module, const Tensor& in) {
    x = in.dtype() == DType::i32 ? tape.input(in) : tape.leaf(in);
    y = module(x);
    return y.value();
  }
  /// Gradients of the latest forward, with `dy` (ones when not defined) for its result. Returns the input's.
  Tensor backward(const Tensor& dy = {}) {
    tape.backward(y, dy.defined() ? nn::Gradient(dy) : nn::Gradient::constant(1));
    return tape.gradient(x);
  }
  nn::Tape tape;
  nn::Var x, y;
};

/// One forward and its backward. Returns the input's gradient.
template <class M>
Tensor run_pass(M& module, const Tensor& in, const Tensor& dy = {}) {
  Taped taped;
  taped.forward(module, in);
  return taped.backward(dy);
}

/// x itself, as a function of parameters whose gradients `put` adds in backward.
inline nn::Var with_gradients(const nn::Var& x, const std::vector<Parameter>& parameters,
                              std::function<void()> put) {
  return nn::function(
      {x}, [&](Stream&) { return x.value(); },
      [put = std::move(put)](Stream&, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        put();
        return {call.output()};
      },
      parameters);
}

/// Parameters alone, whose gradients put_gradients() adds in backward. Gives its input.
struct MadeGradients : nn::Module<MadeGradients> {
  virtual nn::Var forward(const nn::Var& x) {
    return with_gradients(x, own_parameters(), [this] { put_gradients(); });
  }
  virtual void put_gradients() = 0;
};

}  // namespace sherd::test
