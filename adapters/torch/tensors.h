// Tensors in the arguments and results of modules.
#pragma once

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd::torch {

/// Finds the tensors in a value of type T, for calls of wrapped modules: `known`, and visit(value, f).
/// visit() calls f(at::Tensor&) for each of them, always in the same order; f may replace the tensor.
///
/// Known are tensors, and std::vector, array, optional, pair, tuple and map of known types. A program
/// specializes it for its own structures:
///
///     template <> struct sherd::torch::Tensors<Output> {
///       static constexpr bool known = true;
///       template <class F> static void visit(Output& o, F&& f) { f(o.logits); f(o.hidden); }
///     };
///
/// An argument of an unknown type is passed on unchanged. Its tensors get no gradient at the module's end of
/// backward: gradients are reduced later than possible, and tensors are not cast. A result must be of a known
/// type, or hold no tensors (bool, numbers, strings, void). So must all members of its tuples and pairs; the
/// compiler refuses others.
template <class T>
struct Tensors {
  static constexpr bool known = false;
};

template <>
struct Tensors<at::Tensor> {
  static constexpr bool known = true;
  template <class F>
  static void visit(at::Tensor& t, F&& f) {
    if (t.defined()) f(t);
  }
};

namespace detail {

/// Visits a value of a known type; no effect for others.
template <class T, class F>
void visit_known(T& value, F&& f) {
  if constexpr (Tensors<T>::known) Tensors<T>::visit(value, f);
}

/// Returns whether all tensors in a result of type T are found. True for a known type, unless its Tensors
/// defines `complete`, as those of tuples do.
template <class T>
consteval bool complete() {
  if constexpr (requires { Tensors<T>::complete; }) {
    return Tensors<T>::complete;
  } else {
    return Tensors<T>::known || std::is_void_v<T> || std::is_same_v<T, std::string> ||
           !(std::is_class_v<T> || std::is_union_v<T>);
  }
}

/// Tensors of a container of values of one type.
template <class T>
struct TensorsInside {
  static constexpr bool known = true;
  static constexpr bool complete = detail::complete<T>();
  template <class C, class F>
  static void visit(C& values, F&& f) {
    for (T& value : values) Tensors<T>::visit(value, f);
  }
};

}  // namespace detail

template <class T>
requires Tensors<T>::known struct Tensors<std::vector<T>> : detail::TensorsInside<T> {
};

template <class T, size_t N>
requires Tensors<T>::known struct Tensors<std::array<T, N>> : detail::TensorsInside<T> {
};

template <class T>
requires Tensors<T>::known struct Tensors<std::optional<T>> {
  static constexpr bool known = true;
  static constexpr bool complete = detail::complete<T>();
  template <class F>
  static void visit(std::optional<T>& value, F&& f) {
    if (value) Tensors<T>::visit(*value, f);
  }
};

template <class A, class B>
requires(Tensors<A>::known || Tensors<B>::known) struct Tensors<std::pair<A, B>> {
  static constexpr bool known = true;
  static constexpr bool complete = detail::complete<A>() && detail::complete<B>();
  template <class F>
  static void visit(std::pair<A, B>& value, F&& f) {
    detail::visit_known(value.first, f);
    detail::visit_known(value.second, f);
  }
};

template <class... Ts>
requires(Tensors<Ts>::known || ...) struct Tensors<std::tuple<Ts...>> {
  static constexpr bool known = true;
  static constexpr bool complete = (detail::complete<Ts>() && ...);
  template <class F>
  static void visit(std::tuple<Ts...>& value, F&& f) {
    std::apply([&](Ts&... each) { (detail::visit_known(each, f), ...); }, value);
  }
};

template <class K, class T>
requires Tensors<T>::known struct Tensors<std::map<K, T>> {
  static constexpr bool known = true;
  static constexpr bool complete = detail::complete<T>();
  template <class F>
  static void visit(std::map<K, T>& values, F&& f) {
    for (auto& [key, value] : values) Tensors<T>::visit(value, f);
  }
};

}  // namespace sherd::torch
