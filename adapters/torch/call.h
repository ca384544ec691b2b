// Calls of wrapped modules, also of functions that libtorch's modules have no hooks for.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/torch/recompute.h>
#include <sherd/torch/tensors.h>

namespace sherd::torch {

namespace detail {
class Attached;
}

/// One call of a module that may be wrapped: the unit's weights are unsharded from the constructor to end().
/// Destruction without end() means that an exception ended the forward. Used by call().
class [[nodiscard]] CallScope {
 public:
  /// `attached`: detail::attached_to(module).
  CallScope(const ::torch::nn::Module& module, const detail::Attached* attached);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// Returns whether the module is wrapped; otherwise the other functions have no effect.
  bool active() const { return impl_ != nullptr; }
  /// Replaces the tensors of all arguments by ones that report to backward when it leaves the module.
  void inputs(const std::vector<at::Tensor*>& tensors);
  /// Replaces the tensors of the result by ones that report to backward when it enters the module.
  void outputs(const std::vector<at::Tensor*>& tensors);
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace detail {

/// Type under which an argument is held. Arguments of a known type are copied (tensors share their memory);
/// others are passed on unchanged.
template <class T>
using Held = std::conditional_t<Tensors<std::decay_t<T>>::known, std::decay_t<T>, T&&>;

template <class T>
std::vector<at::Tensor*> tensors_in(T& value) {
  std::vector<at::Tensor*> found;
  visit_known(value, [&](at::Tensor& t) { found.push_back(&t); });
  return found;
}

/// Returns the Attached of a module; null for modules unknown to sherd (detail/attached.h).
Attached* attached_to(const ::torch::nn::Module& module);
/// Returns whether a call that begins now is computed again in backward (recompute_calls()).
bool is_recomputed(const Attached* attached);
/// @throws NotSupported: the call's arguments or result cannot be copied.
[[noreturn]] void refuse_recompute(const ::torch::nn::Module& module);

template <class F, class... Args>
decltype(auto) call_once(const ::torch::nn::Module& module, const Attached* attached, F&& f, Args&&... args) {
  using Result = std::invoke_result_t<F, std::add_lvalue_reference_t<Held<Args>>...>;
  static_assert(complete<std::decay_t<Result>>(),
                "sherd cannot find the tensors in what this module returns, or in a member of a "
                "tuple or pair in it: "
                "specialize sherd::torch::Tensors for that type");
  CallScope scope(module, attached);
  std::tuple<Held<Args>...> held(std::forward<Args>(args)...);
  if (scope.active()) {
    std::vector<at::Tensor*> inputs;
    std::apply([&](auto&... each) { (visit_known(each, [&](at::Tensor& t) { inputs.push_back(&t); }), ...); },
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
    scope.outputs(tensors_in(result));
    scope.end();
    return result;
  }
}

}  // namespace detail

/// Returns f(args...) as a call of `module`. f is any function that uses the module's weights: forward, or
/// one of the program's own. In grad mode backward unshards them again and reduces the gradients. Without
/// wrap() it is just f(args...).
///
///     at::Tensor h = sherd::torch::call(*model, [&](const at::Tensor& x) { return model->encode(x); }, x);
///
/// The result must have all tensors that lead to a gradient of the module's weights. A tensor that f stores
/// elsewhere (in a member, say) has no weights in backward, which is an error that names the unit. Inputs are
/// views inside of f: libtorch refuses in-place operations on an input that needs a gradient.
///
/// torch::autograd::grad() works through calls: it unshards their weights, adds to no gradient of a parameter
/// and leaves the backward due. With create_graph its results keep the calls. A backward through them keeps
/// the units unsharded until it has left each call. backward() with create_graph is refused (NotSupported).
///
/// A call in grad mode inside of a backward recomputes and has its own backward there. Its first run was
/// under NoGradGuard, as in functions for activation recomputation (checkpointing), and does not count.
/// recompute() (recompute.h) is such a function for wrapped modules.
/// @throws InvalidArgument when an exception has ended the step (reset_step()), or the root no longer exists.
template <class F, class... Args>
decltype(auto) call(::torch::nn::Module& module, F&& f, Args&&... args) {
  using Result = std::decay_t<std::invoke_result_t<F, std::add_lvalue_reference_t<detail::Held<Args>>...>>;
  const detail::Attached* const attached = detail::attached_to(module);
  if (detail::is_recomputed(attached)) {
    constexpr bool runs_twice = Tensors<Result>::known && std::is_copy_constructible_v<std::decay_t<F>> &&
                                (std::is_copy_constructible_v<std::decay_t<Args>> && ...);
    if constexpr (runs_twice) {
      return recompute(
          [f, attached, &module, alive = module.weak_from_this().lock()](auto&... each) mutable -> Result {
            return detail::call_once(module, attached, f, each...);
          },
          std::forward<Args>(args)...);
    } else {
      detail::refuse_recompute(module);
    }
  }
  return detail::call_once(module, attached, std::forward<F>(f), std::forward<Args>(args)...);
}

namespace detail {

/// @throws InvalidArgument for a sharded module, NotSupported for others.
[[noreturn]] void refuse_clone(const ::torch::nn::Module& module);

/// Module M with a forward() of the same signature, and with fewer arguments where M::forward has defaults.
template <class M, class Forward>
class Calling;

template <class M, class Result, class C, class... Args>
class Calling<M, Result (C::*)(Args...)> : public M {
  // A container of tensors that forward may write to would be a copy, and the writes would be lost.
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
  explicit Calling(const M& module) : M(module) {}
  std::decay_t<Result> forward(Args... args) {
    return call(
        *this, [this](auto&... each) -> decltype(auto) { return M::forward(static_cast<Args&&>(each)...); },
        std::forward<Args>(args)...);
  }
  template <class... Few>
  requires(sizeof...(Few) < sizeof...(Args)) std::decay_t<Result> forward(Few&&... few) {
    return call(
        *this, [this](auto&... each) -> decltype(auto) { return M::forward(each...); },
        std::forward<Few>(few)...);
  }
};

/// For a forward that is overloaded or a template.
template <class M>
class Calling<M, void> : public M {
 public:
  using M::M;
  explicit Calling(const M& module) : M(module) {}
  template <class... Args>
  auto forward(Args&&... args) {
    return call(
        *this, [this](auto&... each) { return M::forward(each...); }, std::forward<Args>(args)...);
  }
};

/// Calling with one forward(), which AnyModule and Sequential can take.
template <class M, class Forward>
class CallingOne : public Calling<M, Forward> {
 public:
  using Calling<M, Forward>::Calling;
};

template <class M, class Result, class C, class... Args>
class CallingOne<M, Result (C::*)(Args...)> : public Calling<M, Result (C::*)(Args...)> {
 public:
  using Calling<M, Result (C::*)(Args...)>::Calling;
  std::decay_t<Result> forward(Args... args) {
    return Calling<M, Result (C::*)(Args...)>::forward(std::forward<Args>(args)...);
  }
};

/// The type of a forward, without const and noexcept.
template <class Forward>
struct SignatureOf;
template <class Result, class C, class... Args>
struct SignatureOf<Result (C::*)(Args...)> {
  using type = Result (C::*)(Args...);
};
template <class Result, class C, class... Args>
struct SignatureOf<Result (C::*)(Args...) const> : SignatureOf<Result (C::*)(Args...)> {};
template <class Result, class C, class... Args>
struct SignatureOf<Result (C::*)(Args...) noexcept> : SignatureOf<Result (C::*)(Args...)> {};
template <class Result, class C, class... Args>
struct SignatureOf<Result (C::*)(Args...) const noexcept> : SignatureOf<Result (C::*)(Args...)> {};

template <class M, class = void>
struct ForwardOf {
  using type = void;
};
template <class M>
struct ForwardOf<M, std::void_t<decltype(&M::forward)>> : SignatureOf<decltype(&M::forward)> {};

}  // namespace detail

/// Module M whose calls unshard its unit's weights when it is wrapped: its forward() runs M's inside of
/// call().
///
///     auto model = std::make_shared<sherd::torch::Sharded<Net>>();
///     torch::nn::Sequential layers(sherd::torch::Sharded<torch::nn::LinearImpl>(8, 8), torch::nn::ReLU());
///
/// Made from an M, it shares that module's parameters, buffers and children, and replaces it. A call through a pointer to M
/// is not intercepted, unless M::forward is virtual.
template <class M>
class Sharded : public detail::CallingOne<M, typename detail::ForwardOf<M>::type> {
 public:
  using detail::CallingOne<M, typename detail::ForwardOf<M>::type>::CallingOne;
  /// Always throws: libtorch's clone() would make an M, and its owner would treat it as a Sharded<M>.
  std::shared_ptr<::torch::nn::Module> clone(
      const std::optional<::torch::Device>& /*device*/ = std::nullopt) const override {
    detail::refuse_clone(*this);
  }
};

/// Counterpart of libtorch's ModuleHolder for Sharded<M>; holder(...) and holder->forward(...) also take
/// M::forward's default arguments.
template <class M>
class Holder : public ::torch::nn::ModuleHolder<Sharded<M>> {
  using Calling = detail::Calling<M, typename detail::ForwardOf<M>::type>;

 public:
  using ::torch::nn::ModuleHolder<Sharded<M>>::ModuleHolder;
  using Impl = Sharded<M>;
  Calling* operator->() { return this->get(); }
  const Calling* operator->() const { return this->get(); }
  template <class... Args>
  auto operator()(Args&&... args) {
    M& module = *this->impl_;
    return call(
        module, [&module](auto&... each) { return module.M::forward(each...); }, std::forward<Args>(args)...);
  }
};

}  // namespace sherd::torch

/// Replacement of TORCH_MODULE(Name): a holder of NameImpl that sherd::torch::wrap() can wrap.
#define SHERD_TORCH_MODULE(Name)                           \
  class Name : public ::sherd::torch::Holder<Name##Impl> { \
   public:                                                 \
    using ::sherd::torch::Holder<Name##Impl>::Holder;      \
  }
