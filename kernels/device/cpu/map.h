// Elementwise CPU kernels, given by a function of one element. Private to CPU kernels.
#pragma once

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/ref.h>

namespace sherd::cpu {

/// out[i] = f(in[i]...), computed in fp32. `out` may be one of `in`.
template <class T, class F, class... In>
void map_elements_of(ExecutionContext& ctx, int64_t count, F f, T* out, const In*... in) {
  parallel_for(ctx, count, kGrain, [=](int64_t begin, int64_t end) {
    round_each(out + begin, end - begin, [=](int64_t i) { return f(float(in[begin + i])...); });
  });
}

/// The same of f32 or bf16.
template <class F, class... In>
void map_elements(ExecutionContext& ctx, int64_t count, F f, Ref out, In... in) {
  with_activation(out.dtype, [&]<class T>(T) {
    map_elements_of(ctx, count, f, out.as<T>(), static_cast<const T*>(in.template as<T>())...);
  });
}

}  // namespace sherd::cpu
