// Modules with a forward alone; backward follows from the tape.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/fsdp/module_base.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/recompute.h>

namespace sherd::nn {

namespace detail {

/// x in the dtype that a call takes or returns: of values that are f32 or bf16, alone or in a vector.
inline Var cast_value(const Var& x, DType dtype) {
  return x.defined() && (x.dtype() == DType::f32 || x.dtype() == DType::bf16) ? cast(x, dtype) : x;
}
template <class T>
decltype(auto) cast_values(const std::optional<DType>& dtype, T&& x) {
  using Kind = std::decay_t<T>;
  if constexpr (std::is_same_v<Kind, Var>) {
    return dtype ? cast_value(x, *dtype) : Var(x);
  } else if constexpr (std::is_same_v<Kind, std::vector<Var>>) {
    std::vector<Var> all = std::forward<T>(x);
    for (Var& v : all)
      if (dtype) v = cast_value(v, *dtype);
    return all;
  } else {
    return std::forward<T>(x);
  }
}

/// One call of a module that may be wrapped: its unit is in use from the constructor to end(), on the tape if there
/// is one that records. Destroyed without end(), an exception has ended the forward.
class ModuleCall {
 public:
  ModuleCall(const ModuleBase& module, Tape* tape);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;
  void end();
  /// The unit's; casts nothing without one.
  const CallPrecision& precision() const { return precision_; }

 private:
  CallPrecision precision_;
  std::optional<NoGrad> evaluates_;
  Unit* unit_;
  Tape* tape_;
  ForwardRecorder* around_ = nullptr;  // of a call on the tape
};

}  // namespace detail

/// The base of modules whose forwards a tape records: struct Mlp : nn::Module<Mlp>. Derived classes describe
/// parameters and children in their constructor and have a member function forward() that takes and returns
/// anything, values (Var) among them. Others *call* the module, which unshards its unit around the forward when it
/// was wrapped by fully_shard(), and notes for backward when to do so again.
///
/// The tape is that of the first argument that is a value on one, or a vector of values; values inside of other
/// types are not seen. A module that is called inside of the recorded forward of its model needs no such argument. Without
/// any, or inside NoGrad, or in evaluation mode of the root
/// (set_training(false)) nothing is kept for a backward. Wrapped modules below the root are called inside the
/// root's forward. A wrapped module's calls cast values (and vectors of values) among their arguments and results as
/// its options say (FullyShardOptions::cast_inputs, output_dtype); other types pass as they are.
template <class Self>
class Module : public ModuleBase {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    constexpr bool kHasForward = requires(Self & self, Args && ... xs) {
      self.forward(detail::cast_values(std::optional<DType>(), std::forward<Args>(xs))...);
    };
    static_assert(kHasForward,
                  "the class that derives from nn::Module has no public forward() for the arguments of this "
                  "call; declare one, such as Var forward(const Var& x)");
    // Else the call has a type all the same, so that one error is all there is.
    if constexpr (kHasForward)
      return forward_called(std::forward<Args>(args)...);
    else
      return Var();
  }

  /// Every call's activations are dropped and computed again in backward: nn::recompute() inside of the unit's call.
  /// Arguments are copied, and forward takes them by value or as constants. @param arguments memory that stores them until backward.
  /// @throws InvalidArgument (the call) when it does not.
  void set_recompute(bool on, Place arguments = Place::device) {
    recomputes_ = on;
    arguments_ = arguments;
  }
  bool recomputes() const { return recomputes_; }

 private:
  template <class... Args>
  auto forward_called(Args&&... args) {
    Tape* const tape = detail::tape_in(args...);
    detail::ModuleCall call(*this, tape);
    const auto forward = [this, to = call.precision()](auto&&... xs) {
      using Result = decltype(static_cast<Self&>(*this).forward(
          detail::cast_values(to.inputs, std::forward<decltype(xs)>(xs))...));
      if constexpr (std::is_void_v<Result>) {
        static_cast<Self&>(*this).forward(detail::cast_values(to.inputs, std::forward<decltype(xs)>(xs))...);
      } else {
        std::decay_t<Result> result = static_cast<Self&>(*this).forward(
            detail::cast_values(to.inputs, std::forward<decltype(xs)>(xs))...);
        if constexpr (std::is_same_v<std::decay_t<Result>, Var> ||
                      std::is_same_v<std::decay_t<Result>, std::vector<Var>>)
          return detail::cast_values(to.outputs, std::move(result));
        else
          return result;
      }
    };
    constexpr bool kCopies = (std::is_copy_constructible_v<std::decay_t<Args>> && ...) &&
                             requires(Self & self, const std::decay_t<Args>&... xs) {
      self.forward(detail::cast_values(std::optional<DType>(), xs)...);
    };
    if (recomputes_ && !kCopies)
      throw InvalidArgument(
          "set_recompute() of a module whose forward takes arguments that it may change, or that cannot be "
          "copied; let "
          "the module hold a pointer to them");
    if constexpr (std::is_void_v<decltype(forward(std::forward<Args>(args)...))>) {
      if constexpr (kCopies) {
        if (recomputes_) {
          nn::recompute(arguments_, forward, args...);
          return call.end();
        }
      }
      forward(std::forward<Args>(args)...);
      call.end();
    } else {
      if constexpr (kCopies) {
        if (recomputes_) {
          auto result = nn::recompute(arguments_, forward, args...);
          call.end();
          return result;
        }
      }
      auto result = forward(std::forward<Args>(args)...);
      call.end();
      return result;
    }
  }

  bool recomputes_ = false;
  Place arguments_ = Place::device;
};

}  // namespace sherd::nn
