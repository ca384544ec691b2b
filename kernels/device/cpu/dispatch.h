// Dispatch of the CPU kernels on the dtype. Private to CPU kernels.
#pragma once

#include <sherd/base/error.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd::cpu {

/// Calls f(T{}) with the activation type of `t`; ops.h lets no other dtype through.
template <class F>
void with_activation(DType t, F&& f) {
  if (t == DType::f32) return f(float{});
  if (t == DType::bf16) return f(bf16{});
  throw InvalidArgument("cpu kernels: the activation dtype must be f32 or bf16");
}

/// The same with the types of packed messages and copies of weights: f16 too.
template <class F>
void with_payload(DType t, F&& f) {
  if (t == DType::f16) return f(f16{});
  with_activation(t, f);
}

/// dst = v rounded to its type. (Assigning bf16(v) in place would stop GCC 12 from vectorising the loop.)
inline void store(float& dst, float v) { dst = v; }
inline void store(bf16& dst, float v) { dst = bf16(v); }
inline void store(f16& dst, float v) { dst = f16(v); }

}  // namespace sherd::cpu
