#include <sherd/nn/kernels/loss/loss.h>

#include <algorithm>

#include <sherd/nn/kernels/softmax/cuda_softmax.h>

namespace sherd::cuda {
namespace {

/// Losses unless they are null, the gradient unless dlogits is null. Rows are in dynamic shared memory, as
/// far as their first `cached` packs, between the two readings that the gradient needs.
template <class T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kThreads>)
    cross_entropy_rows(CrossEntropyArgs a, int cached) {
  const RowThread<kThreads> me;
  if (me.row >= a.rows) return;
  Pack<T>* cache = nullptr;
  if (cached > 0) {
    SHERD_DYNAMIC_SHARED(Pack<T>, shared);
    cache = shared + me.in_block * cached;
  }
  const LogitsRow<T, kAligned> x(a.logits, me.row, a.vocab, a.ld);
  const int64_t target = a.targets[me.row];
  if (target == kIgnoredTarget) {
    if (a.losses.data != nullptr && me.thread == 0) static_cast<float*>(a.losses.data)[me.row] = 0;
    if (a.dlogits.data != nullptr)
      zero_row<kThreads>(LogitsRow<T, kAligned>(a.dlogits, me.row, a.vocab, a.ld), me.thread);
    return;
  }
  const bool known = target >= 0 && target < a.vocab;  // else check_indices has failed the stream
  const float wanted = known ? to_float(x.data[target]) : NAN;
  const Softmax of = softmax_of<kThreads>(x, me.thread, cache, cached);
  if (a.losses.data != nullptr && me.thread == 0)
    static_cast<float*>(a.losses.data)[me.row] = of.max - wanted + logf(of.sum);
  if (a.dlogits.data == nullptr) return;
  __syncwarp();  // all have read `wanted` before any writes to dlogits, which may be logits
  const LogitsRow<T, kAligned> dx(a.dlogits, me.row, a.vocab, a.ld);
  const float scale =
      a.scales.data == nullptr ? a.scale : a.scale * static_cast<const float*>(a.scales.data)[me.row];
  scaled_exp<kThreads>(dx, x, me.thread, cache, cached, of.max, scale / of.sum);
  if (known && owns<kThreads, T>(me.thread, target))
    put(dx.data[target], (exp_of(wanted - of.max) / of.sum - 1.0f) * scale);
}

void cross_entropy(ExecutionContext& context, const char* what, const CrossEntropyArgs& a) {
  with_f32_bf16(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    with_logits_form<T>(a.vocab, a.ld, {a.logits.data, a.dlogits.data}, [&](auto threads, auto aligned) {
      constexpr int kRows = kBlockThreads<threads()> / threads();
      const auto kernel = cross_entropy_rows<T, threads(), aligned()>;
      const int64_t room = dynamic_shared_limit(context, what, reinterpret_cast<const void*>(kernel)) /
                           (kRows * static_cast<int64_t>(sizeof(Pack<T>)));
      const int64_t cached = a.dlogits.data == nullptr ? 0 : std::min(room, packs_of<T>(a.vocab));
      launch(context, what, kernel,
             grid_of_rows<threads()>(a.rows, static_cast<size_t>(cached) * sizeof(Pack<T>)), a,
             static_cast<int>(cached));
    });
  });
}

void cross_entropy_forward(ExecutionContext& context, const CrossEntropyArgs& a) {
  CrossEntropyArgs losses = a;
  losses.dlogits = {};
  cross_entropy(context, "cross_entropy_forward", losses);
}

void cross_entropy_backward(ExecutionContext& context, const CrossEntropyArgs& a) {
  CrossEntropyArgs gradient = a;
  gradient.losses = {};
  cross_entropy(context, "cross_entropy_backward", gradient);
}

void cross_entropy_forward_backward(ExecutionContext& context, const CrossEntropyArgs& a) {
  cross_entropy(context, "cross_entropy_forward_backward", a);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const LossKernels* LossKernels::cuda() {
  static constexpr LossKernels table{
      .cross_entropy_forward = cuda::cross_entropy_forward,
      .cross_entropy_backward = cuda::cross_entropy_backward,
      .cross_entropy_forward_backward = cuda::cross_entropy_forward_backward,
  };
  return &table;
}

}  // namespace sherd
