// On which tape a call is.
#pragma once

#include <vector>

#include <sherd/nn/tape.h>

namespace sherd::nn::detail {

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

}  // namespace sherd::nn::detail
