// Activation recomputation: a region of a forward is dropped, and run again when backward needs it.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

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

}  // namespace detail

/// f(args...), of which the tape keeps nothing but the arguments: what functions inside leave for backward is dropped
/// at once, and backward runs f again before it goes through it. The result is that of f, with any number of values
/// in it. Training has the same bits as without. The tape is that of the first argument that is a value, as in a
/// module's call; without one, or where it does not record, this is f(args...).
///
///     x = nn::recompute([&](const Var& x) { return block(x); }, x);
///
/// f and the arguments are copied and live until backward; f takes these copies by value or as constants. What f refers to has to live and stay as it is until then,
/// for f runs twice: it may depend on its arguments, on parameters and on nothing that changes in between. It does the
/// same operations both times. @throws InvalidArgument (from backward()) when it has not.
///
/// Wrapped modules may be called inside. Where the scope lies inside of one unit's call (Module::set_recompute()) or
/// is one such call, that unit's collectives are those without recomputation: it is gathered for the second run in the
/// place of its backward, and stays whole until that is done. The same holds for larger scopes as long as the slots
/// hold their units (FullyShardOptions::prefetch + 1 of each height). A scope of more units of one height costs as many
/// gathers more as it has units beyond the slots, and one for the unit that was gathered ahead for nothing. Other
/// collectives inside (those of tensor-, expert- and context-parallel functions) run once more.
///
/// Memory: from forward to backward the arguments' values and what leaves f; in backward, beside that, what one
/// scope's functions keep. Scopes may be nested; the inner ones count in the second run of the outer.
template <class F, class... Args>
auto recompute(F f, Args... args) -> std::invoke_result_t<F&, const Args&...> {
  using Result = std::invoke_result_t<F&, const Args&...>;
  Tape* const tape = detail::tape_in(args...);
  if (tape == nullptr || !tape->recording()) return f(std::as_const(args)...);
  if constexpr (std::is_void_v<Result>) {
    tape->recompute([&] { f(std::as_const(args)...); }, [f, args...]() mutable { f(std::as_const(args)...); });
  } else {
    std::optional<Result> result;
    tape->recompute([&] { result.emplace(f(std::as_const(args)...)); },
                    [f, args...]() mutable { f(std::as_const(args)...); });
    return std::move(*result);
  }
}

}  // namespace sherd::nn
