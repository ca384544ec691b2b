// State of torch::optim optimizers by parameter and key, for checkpoints.
#pragma once

#include <torch/optim.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sherd::torch {

/// Fields of an optimizer's state of one parameter. The pointers are into that state.
struct StateFields {
  /// Tensors by their names in checkpoints: words without a dot, not "step". Each tensor is f32, of the
  /// parameter's sizes, and updated element by element.
  std::vector<std::pair<std::string, at::Tensor*>> tensors = {};
  /// The count of updates; null for an optimizer without one.
  int64_t* step = nullptr;
};

/// Names the state that an optimizer of class `Optimizer` keeps for each parameter: the class of the state
/// (`Param`), the class of the options (`Options`), and the fields under given options. An optimizer with
/// StateFields::step begins with zeros, or with its earlier state. One without makes its state in the first
/// update.
///
/// A program specializes it for other optimizers that update element by element:
///
///     template <> struct sherd::torch::OptimizerState<MyOptimizer> {
///       using Param = MyParamState;
///       using Options = MyOptions;
///       static StateFields fields(Param& s, const Options&) { return {{{"trace", &s.trace()}}, &s.step()}; }
///     };
template <class Optimizer>
struct OptimizerState {};

namespace detail {

template <class State, class OptionsOf>
struct AdamState {
  using Param = State;
  using Options = OptionsOf;
  static StateFields fields(Param& s, const Options& options) {
    StateFields all{{{"exp_avg", &s.exp_avg()}, {"exp_avg_sq", &s.exp_avg_sq()}}, &s.step()};
    if (options.amsgrad()) all.tensors.emplace_back("max_exp_avg_sq", &s.max_exp_avg_sq());
    return all;
  }
};

}  // namespace detail

template <>
struct OptimizerState<::torch::optim::Adam>
    : detail::AdamState<::torch::optim::AdamParamState, ::torch::optim::AdamOptions> {};
template <>
struct OptimizerState<::torch::optim::AdamW>
    : detail::AdamState<::torch::optim::AdamWParamState, ::torch::optim::AdamWOptions> {};

template <>
struct OptimizerState<::torch::optim::SGD> {
  using Param = ::torch::optim::SGDParamState;
  using Options = ::torch::optim::SGDOptions;
  static StateFields fields(Param& s, const Options& options) {
    if (options.momentum() == 0) return {};
    return {{{"momentum_buffer", &s.momentum_buffer()}}};
  }
};

template <>
struct OptimizerState<::torch::optim::RMSprop> {
  using Param = ::torch::optim::RMSpropParamState;
  using Options = ::torch::optim::RMSpropOptions;
  static StateFields fields(Param& s, const Options& options) {
    StateFields all{{{"square_avg", &s.square_avg()}}, &s.step()};
    if (options.momentum() > 0) all.tensors.emplace_back("momentum_buffer", &s.momentum_buffer());
    if (options.centered()) all.tensors.emplace_back("grad_avg", &s.grad_avg());
    return all;
  }
};

template <>
struct OptimizerState<::torch::optim::Adagrad> {
  using Param = ::torch::optim::AdagradParamState;
  using Options = ::torch::optim::AdagradOptions;
  static StateFields fields(Param& s, const Options&) { return {{{"sum", &s.sum()}}, &s.step()}; }
};

namespace detail {

/// An optimizer whose state is kept, without its class.
struct KeptOptimizer {
  ::torch::optim::Optimizer* optimizer = nullptr;
  std::function<std::unique_ptr<::torch::optim::OptimizerParamState>()> make = {};
  std::function<StateFields(::torch::optim::OptimizerParamState&, const ::torch::optim::OptimizerOptions&)>
      fields = {};
};

template <class Optimizer>
KeptOptimizer kept(Optimizer& optimizer) {
  using State = OptimizerState<Optimizer>;
  static_assert(
      requires { typename State::Param; },
      "sherd does not know the state of this optimizer's class: specialize "
      "sherd::torch::OptimizerState for it, if it updates element by element");
  return {&optimizer, [] { return std::make_unique<typename State::Param>(); },
          [](::torch::optim::OptimizerParamState& s, const ::torch::optim::OptimizerOptions& o) {
            return State::fields(static_cast<typename State::Param&>(s),
                                 static_cast<const typename State::Options&>(o));
          }};
}

}  // namespace detail
}  // namespace sherd::torch
