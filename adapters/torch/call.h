// Calls of wrapped modules, for calls that libtorch's modules have no hooks for.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/torch/tensors.h>

namespace sherd::torch {

/// One call of a module that may be wrapped: its unit's weights are there from the constructor to end().
/// Destroyed without end(), an exception has ended the forward. For call(), which people use.
class [[nodiscard]] CallScope {
 public:
  explicit CallScope(::torch::nn::Module& module);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// False for a module that is not wrapped: the other functions then do nothing.
  bool active() const { return impl_ != nullptr; }
  /// Of all arguments: put in their place are tensors by which backward tells that it has left the module.
  void inputs(const std::vector<at::Tensor*>& tensors);
  /// Of the result: by which backward tells that it comes to the module.
  void outputs(const std::vector<at::Tensor*>& tensors);
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace detail {

/// Arguments whose tensors are found are copied (tensors share their memory), others are handed on as they
/// are.
template <class T>
using Held = std::conditional_t<Tensors<std::decay_t<T>>::known, std::decay_t<T>, T&&>;

template <class T>
std::vector<at::Tensor*> tensors_in(T& value) {
  std::vector<at::Tensor*> found;
  visit_known(value, [&](at::Tensor& t) { found.push_back(&t); });
  return found;
}

}  // namespace detail

/// f(args...) as a call of `module`: whatever uses its weights, forward or another function of the program's
/// own. In grad mode backward gathers them again and reduces the gradients. Without wrap, it is just
/// f(args...).
///
///     at::Tensor h = sherd::torch::call(*model, [&](const at::Tensor& x) { return model->encode(x); }, x);
///
/// All tensors that lead to a gradient of the module's weights have to be in the result: what f leaves
/// elsewhere (a member, say) has no weights in backward, which is an error that names the unit. Inputs are
/// views in there: operations in place on an input itself that needs a gradient are refused by libtorch.
///
/// torch::autograd::grad() goes through calls, too: it unshards their weights, adds to no gradient of a parameter and leaves
/// the backward due. With create_graph its results keep the calls, and a backward through them holds their units
/// unsharded until it has left each call. backward() with create_graph is refused (NotSupported).
///
/// A call in grad mode inside of a backward, to compute it again, has its own backward in there: its first run was under
/// NoGradGuard, as functions for activation recomputation (checkpointing) do it, and counts for nothing. recompute()
/// (recompute.h) is such a function, which knows of wrapped modules.
/// @throws InvalidArgument when an exception has ended the step (reset_step()), or the root is gone.
template <class F, class... Args>
decltype(auto) call(::torch::nn::Module& module, F&& f, Args&&... args) {
  using Result = std::invoke_result_t<F, std::add_lvalue_reference_t<detail::Held<Args>>...>;
  static_assert(detail::complete<std::decay_t<Result>>(),
                "sherd cannot find the tensors in what this module returns, or in a member of a "
                "tuple or pair in it: "
                "specialize sherd::torch::Tensors for that type");
  CallScope scope(module);
  std::tuple<detail::Held<Args>...> held(std::forward<Args>(args)...);
  if (scope.active()) {
    std::vector<at::Tensor*> inputs;
    std::apply(
        [&](auto&... each) {
          (detail::visit_known(each, [&](at::Tensor& t) { inputs.push_back(&t); }), ...);
        },
        held);
    scope.inputs(inputs);
  }
  const auto run = [&]() -> decltype(auto) {
    return std::apply([&](auto&... each) -> decltype(auto) { return std::forward<F>(f)(each...); }, held);
  };
  if constexpr (std::is_void_v<Result>) {
    run();
    scope.outputs({});
    scope.end();
  } else {
    std::decay_t<Result> result = run();
    scope.outputs(detail::tensors_in(result));
    scope.end();
    return result;
  }
}

namespace detail {

/// @throws InvalidArgument of a sharded module, NotSupported of others.
[[noreturn]] void refuse_clone(const ::torch::nn::Module& module);

/// forward() with the signature that M's has, so that AnyModule and Sequential can take it.
template <class M, class Forward>
class Calling;

template <class M, class Result, class C, class... Args>
class Calling<M, Result (C::*)(Args...)> : public M {
  // A container of tensors that forward may write to would be a copy, and what is written there lost.
  template <class A>
  static constexpr bool is_written =
      std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>> &&
      !std::is_same_v<std::decay_t<A>, at::Tensor> && Tensors<std::decay_t<A>>::known;
  static_assert(!(is_written<Args> || ...),
                "forward of a module that is to be wrapped takes tensors by a reference that it may write "
                "to; take them by "
                "value or const reference, and return what is new");

 public:
  using M::M;
  std::decay_t<Result> forward(Args... args) {
    return call(
        *this, [this](auto&... each) -> decltype(auto) { return M::forward(static_cast<Args&&>(each)...); },
        std::forward<Args>(args)...);
  }
};

template <class M, class Result, class C, class... Args>
class Calling<M, Result (C::*)(Args...) const> : public Calling<M, Result (C::*)(Args...)> {
 public:
  using Calling<M, Result (C::*)(Args...)>::Calling;
};

template <class M, class Result, class C, class... Args>
class Calling<M, Result (C::*)(Args...) noexcept> : public Calling<M, Result (C::*)(Args...)> {
 public:
  using Calling<M, Result (C::*)(Args...)>::Calling;
};
template <class M, class Result, class C, class... Args>
class Calling<M, Result (C::*)(Args...) const noexcept> : public Calling<M, Result (C::*)(Args...)> {
 public:
  using Calling<M, Result (C::*)(Args...)>::Calling;
};

/// Of a forward that is overloaded or a template.
template <class M>
class Calling<M, void> : public M {
 public:
  using M::M;
  template <class... Args>
  auto forward(Args&&... args) {
    return call(
        *this, [this](auto&... each) { return M::forward(each...); }, std::forward<Args>(args)...);
  }
};

template <class M, class = void>
struct ForwardOf {
  using type = void;
};
template <class M>
struct ForwardOf<M, std::void_t<decltype(&M::forward)>> {
  using type = decltype(&M::forward);
};

}  // namespace detail

/// Module M, whose calls gather its unit's weights when it is wrapped: its forward() is that of M inside of
/// call().
///
///     auto model = std::make_shared<sherd::torch::Sharded<Net>>();
///     torch::nn::Sequential layers(sherd::torch::Sharded<torch::nn::LinearImpl>(8, 8), torch::nn::ReLU());
///
/// A pointer to M itself knows nothing of this, unless M::forward is virtual.
template <class M>
class Sharded : public detail::Calling<M, typename detail::ForwardOf<M>::type> {
 public:
  using detail::Calling<M, typename detail::ForwardOf<M>::type>::Calling;
  /// Always throws: libtorch's clone() would make an M, which its owner would take for a Sharded<M>.
  std::shared_ptr<::torch::nn::Module> clone(
      const std::optional<::torch::Device>& /*device*/ = std::nullopt) const override {
    detail::refuse_clone(*this);
  }
};

/// What libtorch's ModuleHolder is, for Sharded<M>; its call takes M::forward's default arguments, too.
template <class M>
class Holder : public ::torch::nn::ModuleHolder<Sharded<M>> {
 public:
  using ::torch::nn::ModuleHolder<Sharded<M>>::ModuleHolder;
  using Impl = Sharded<M>;
  template <class... Args>
  auto operator()(Args&&... args) {
    M& module = *this->impl_;
    return call(
        module, [&module](auto&... each) { return module.M::forward(each...); }, std::forward<Args>(args)...);
  }
};

}  // namespace sherd::torch

/// In the place of TORCH_MODULE(Name): a holder of NameImpl that can be wrapped by sherd::torch::wrap().
#define SHERD_TORCH_MODULE(Name)                           \
  class Name : public ::sherd::torch::Holder<Name##Impl> { \
   public:                                                 \
    using ::sherd::torch::Holder<Name##Impl>::Holder;      \
  }
