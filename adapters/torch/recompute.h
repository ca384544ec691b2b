// Activation recomputation: drops the activations of a region, and runs it again in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/torch/tensors.h>

namespace sherd::torch {

namespace detail {

/// Runs `first` without recording. Backward runs `again` with tensors that replace `inputs`, and
/// differentiates that run. Both return as many tensors.
std::vector<at::Tensor> run_twice(
    const std::vector<at::Tensor>& inputs, const std::function<std::vector<at::Tensor>()>& first,
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> again);

/// Returns a tensor without values, which replaces the tensors of held arguments.
at::Tensor nothing_held();

}  // namespace detail

/// Returns f(args...). Autograd keeps only the arguments: backward runs f again before it differentiates it.
/// Gradients have the same bits as without recomputation; random numbers (dropout) are drawn again as they
/// were. Without recording it is just f(args...).
///
///     for (const auto& block : *blocks)
///       x = sherd::torch::recompute([block](const at::Tensor& h) { return block->as<Block>()->forward(h); }, x);
///
/// Calls of wrapped modules may be inside of f, and recompute() may be inside of a call. The second run
/// unshards a wrapped module's weights instead of its backward. They stay unsharded for that backward if
/// their memory lasts; scopes of several units unshard the other units once more. Scopes may nest; the inner
/// ones count in the second run of the outer one.
///
/// Random numbers on a GPU are drawn again if one of the arguments is on it.
///
/// f and the arguments are copied and live as long as the graph; f takes tensors, as values or const
/// references. Tensors are found in arguments and result as by call() (tensors.h). Other tensors that f
/// refers to have no gradients, except weights. f runs twice: it depends on its arguments, weights, random
/// numbers and the tensors that it writes, and on nothing else that changes in between (a module's mode,
/// say). Autocast is as it was.
///
/// Tensors that f writes in place change once: running statistics, counters, buffers of a program's modules.
/// The second run gets copies with the values from before the first, so that it computes the same and changes
/// nothing. The parts that f writes are copied in the first run, and kept until backward. Only writes by
/// operations of libtorch are detected: a write through a pointer, or an assignment to a member, happens
/// twice.
///
/// Every tensor of the result that can have a gradient has requires_grad on, even if nothing in f needs one.
/// @throws InvalidArgument when f writes to an argument in place; from backward(), when f returns another number of
/// tensors the second time. NotSupported from a backward with create_graph, and from torch::autograd::grad().
template <class F, class... Args>
auto recompute(F f, Args... args) -> std::decay_t<std::invoke_result_t<F&, Args&...>> {
  using Result = std::decay_t<std::invoke_result_t<F&, Args&...>>;
  static_assert(Tensors<Result>::known,
                "sherd cannot find the tensors in what this function returns: specialize "
                "sherd::torch::Tensors for it");
  if (!at::GradMode::is_enabled()) return f(args...);
  const auto tensors_of = [](auto& value) {
    std::vector<at::Tensor> found;
    detail::visit_known(value, [&](at::Tensor& t) { found.push_back(t); });
    return found;
  };
  std::tuple<Args...> held(std::move(args)...);
  std::optional<Result> result;
  const std::vector<at::Tensor> inputs = tensors_of(held);
  // The first run stores its result; autograd's function holds the arguments' tensors until the second.
  const auto first = [&] {
    result.emplace(std::apply(f, held));
    return tensors_of(*result);
  };
  auto without_tensors = held;
  detail::visit_known(without_tensors, [](at::Tensor& t) { t = detail::nothing_held(); });
  auto again = [f, without_tensors, tensors_of](const std::vector<at::Tensor>& tensors) mutable {
    auto arguments = without_tensors;
    size_t i = 0;
    detail::visit_known(arguments, [&](at::Tensor& t) { t = tensors[i++]; });
    Result second = std::apply(f, arguments);
    return tensors_of(second);
  };
  const std::vector<at::Tensor> outputs = detail::run_twice(inputs, first, std::move(again));
  size_t i = 0;
  detail::visit_known(*result, [&](at::Tensor& t) { t = outputs[i++]; });
  return std::move(*result);
}

}  // namespace sherd::torch
