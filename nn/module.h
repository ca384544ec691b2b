// Modules of which only the forward is written.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/fsdp/module.h>
#include <sherd/nn/tape.h>

namespace sherd::nn {

namespace detail {

// The tape of the first argument that has one: of values, and of vectors of them.
inline Tape* tape_of(const Var& x) { return x.tape(); }
inline Tape* tape_of(const std::vector<Var>& all) {
  for (const Var& x : all)
    if (x.tape() != nullptr) return x.tape();
  return nullptr;
}
template <class T>
Tape* tape_of(const T&) {
  return nullptr;
}
inline Tape* tape_in() { return nullptr; }
template <class First, class... Rest>
Tape* tape_in(const First& first, const Rest&... rest) {
  if (Tape* tape = tape_of(first)) return tape;
  return tape_in(rest...);
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

 private:
  std::optional<NoGrad> evaluates_;
  Unit* unit_;
  Tape* tape_;
};

}  // namespace detail

/// The base of modules whose forwards a tape records: struct Mlp : nn::Module<Mlp>. Derived classes describe
/// parameters and children in their constructor and have a member function forward() that takes and returns
/// anything, values (Var) among them. Others *call* the module, which unshards its unit around the forward when it
/// was wrapped by fully_shard(), and notes for backward when to do so again.
///
/// The tape is that of the first argument that is a value on one, or a vector of values; values inside of other
/// types are not seen. Without any such argument, or inside NoGrad, or in evaluation mode of the root
/// (set_training(false)) nothing is kept for a backward. Wrapped modules below the root are called inside the
/// root's forward.
template <class Self>
class Module : public ModuleBase {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    Tape* const tape = detail::tape_in(args...);
    detail::ModuleCall call(*this, tape);
    if constexpr (std::is_void_v<decltype(static_cast<Self&>(*this).forward(std::forward<Args>(args)...))>) {
      static_cast<Self&>(*this).forward(std::forward<Args>(args)...);
      call.end();
    } else {
      auto result = static_cast<Self&>(*this).forward(std::forward<Args>(args)...);
      call.end();
      return result;
    }
  }
};

/// A module with a hand-written backward as one operation on x's tape. Its calls and their backwards must come in
/// reverse order, as the module keeps them: every call's result has to be used.
Var call(sherd::Module& module, const Var& x);

}  // namespace sherd::nn
