// Activation recomputation: a region of a forward is dropped, and run again when backward needs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
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

// Collects the values among arguments.
inline void add_values(std::vector<Var*>& to, Var& x) { to.push_back(&x); }
inline void add_values(std::vector<Var*>& to, std::vector<Var>& all) {
  for (Var& x : all) to.push_back(&x);
}
template <class T>
void add_values(std::vector<Var*>&, T&) {}

}  // namespace detail

/// Returns f(args...), of which the tape saves only the arguments: activations saved inside are dropped at
/// once, and backward runs f again before its own backward. The result is that of f, with any number of
/// values in it. Training has the same bits as without. The tape is that of the first argument that is a
/// value, as in a module's call; without one, or where it does not record, this is f(args...).
///
///    x = nn::recompute([&](const Var& x) { return block(x); }, x);
///
/// f and the arguments are copied and live until backward; f takes these copies by value or as constants.
/// Objects that f refers to must live and stay unchanged until then, for f runs twice. It may depend only on
/// its arguments, on parameters and on constant data. It must do the same operations both times. @throws
/// InvalidArgument (from backward()) otherwise.
///
/// Wrapped modules may be called inside. Where the scope is inside one unit's call (Module::set_recompute())
/// or is one such call, that unit's collectives are those without recomputation: it is gathered for the
/// second run in place of its backward, and stays unsharded until that is done. The same holds for larger
/// scopes while the slots hold their units (RootOptions::prefetch + 1 of each height). A scope of more
/// units of one height needs one further gather for each unit beyond the slots, and one for the unit that was
/// prefetched in vain. Other collectives inside (those of tensor-, expert- and context-parallel functions)
/// run twice.
///
/// Memory: from forward to backward the arguments' values and the results of f; in backward, in addition, the
/// saved activations of one scope. Scopes may be nested; the inner ones count in the second run of the outer.
///
/// @param arguments host: the arguments that have a gradient, values and vectors of values, are stored on the host (Device::host_tier(); on a CPU give
/// DeviceOptions::offload_folder) from the forward of the next scope but one until backward comes to the next scope. Copies run beside
/// compute(). The device then holds the arguments of three scopes at most, whatever their number, and the bits are the same.
/// A value that another function or the caller keeps stays on the device as well, and one that several scopes take is stored for each.
/// Not of scopes inside of scopes.
template <class F, class... Args>
auto recompute(Place arguments, F f, Args... args) -> std::invoke_result_t<F&, const Args&...> {
  using Result = std::invoke_result_t<F&, const Args&...>;
  Tape* const tape = detail::tape_in(args...);
  if (tape == nullptr || !tape->recording()) return f(std::as_const(args)...);
  const auto kept = std::make_shared<std::tuple<Args...>>(std::move(args)...);
  std::vector<Var*> offloaded;
  if (arguments == Place::host)
    std::apply([&](auto&... all) { (detail::add_values(offloaded, all), ...); }, *kept);
  if constexpr (std::is_void_v<Result>) {
    tape->recompute([&] { std::apply(f, std::as_const(*kept)); },
                    [f, kept]() mutable { std::apply(f, std::as_const(*kept)); }, offloaded);
  } else {
    std::optional<Result> result;
    tape->recompute([&] { result.emplace(std::apply(f, std::as_const(*kept))); },
                    [f, kept]() mutable { std::apply(f, std::as_const(*kept)); }, offloaded);
    return std::move(*result);
  }
}
template <class F, class... Args>
auto recompute(F f, Args... args) -> std::invoke_result_t<F&, const Args&...> {
  return recompute(Place::device, std::move(f), std::move(args)...);
}

}  // namespace sherd::nn
