// Code compiled for each width of the processor's vectors. Private to CPU kernels.
#pragma once

#include <sherd/kernels/device/cpu/features.h>

namespace sherd::cpu {

/// One compiled body for every caller: all threads run the same code, and since f is a private copy, what it
/// captured cannot alias what it writes (which would keep its loops from being vectorised).
template <class F, class... A>
[[gnu::noinline]] auto with_base_vectors(F f, A... a) {
  return f(a...);
}

#ifdef __x86_64__
/// The same with vectors of 512 bits: everything that f calls becomes part of it, but for functions that are noinline.
template <class F, class... A>
[[gnu::noinline, gnu::flatten, gnu::target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]] auto
with_wide_vectors(F f, A... a) {
  return f(a...);
}
#endif

/// Returns f(a...), compiled for the widest vectors of this processor. An element's bits do not depend on the width; those
/// of a sum over a row may.
template <class F, class... A>
auto vectorized(F f, A... a) {
#ifdef __x86_64__
  if (features().wide_vectors) return with_wide_vectors(f, a...);
#endif
  return with_base_vectors(f, a...);
}

}  // namespace sherd::cpu
