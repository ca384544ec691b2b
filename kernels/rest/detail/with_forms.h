// Choice of the types that stand for forms. Private to kernels.
#pragma once

#include <sherd/kernels/rest/rest.h>

namespace sherd::rest {

/// Calls f(make), where make(high, low) gives the weights of a segment, as one of a backend's types.
template <class F32, class Bf16, class Halves, class F>
void with_weights(Master form, F& f) {
  if (form == Master::bf16) return f([](void* high, void*) { return Bf16{static_cast<uint16_t*>(high)}; });
  if (form == Master::split)
    return f([](void* high, void* low) {
      return Halves{static_cast<uint16_t*>(high), static_cast<uint16_t*>(low)};
    });
  return f([](void* high, void*) { return F32{static_cast<float*>(high)}; });
}
/// Calls f(make), where make(at) gives the state of a segment.
template <class F32, class Bf16, class F>
void with_state(DType dtype, F& f) {
  if (dtype == DType::bf16) return f([](void* at) { return Bf16{static_cast<uint16_t*>(at)}; });
  return f([](void* at) { return F32{static_cast<float*>(at)}; });
}

}  // namespace sherd::rest
