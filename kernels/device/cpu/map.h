// Elementwise CPU kernels, given by a function of one element. Private to CPU kernels.
#pragma once

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/ref.h>

namespace sherd::cpu {

/// out[i] = f(in[i]...), of f32 or bf16, computed in fp32. `out` may be one of `in`.
template <class F, class... In>
void map_elements(ExecutionContext& ctx, int64_t count, F f, Ref out, In... in) {
  with_activation(out.dtype, [&]<class T>(T) {
    parallel_for(ctx, count, kGrain,
                 [f, to = out.as<T>(), ... from = static_cast<const T*>(in.template as<T>())](int64_t begin,
                                                                                              int64_t end) {
                   round_each(to + begin, end - begin,
                              [&](int64_t i) { return f(float(from[begin + i])...); });
                 });
  });
}

}  // namespace sherd::cpu
