#include <sherd/nn/kernels/dropout/dropout.h>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

template <class T>
void drop_row(T* y, const T* x, int64_t cols, uint64_t row, const DropoutKey& key, uint32_t threshold,
              float factor) {
  const std::array<uint32_t, 2> words_key{static_cast<uint32_t>(key.key),
                                          static_cast<uint32_t>(key.key >> 32)};
  for (int64_t first = 0; first < cols; first += 4) {
    const auto words = philox4x32({static_cast<uint32_t>(first / 4), static_cast<uint32_t>(row),
                                   static_cast<uint32_t>(row >> 32), key.call},
                                  words_key);
    const int64_t end = std::min<int64_t>(4, cols - first);
    for (int64_t k = 0; k < end; ++k)
      store(y[first + k], words[static_cast<size_t>(k)] < threshold ? 0.0f : float(x[first + k]) * factor);
  }
}

void dropout(ExecutionContext& ctx, const DropoutArgs& a) {
  with_activation(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    const uint32_t threshold = a.threshold();
    const float factor = 1 / (1 - a.p);
    parallel_for(ctx, a.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.cols)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r)
                     drop_row(a.y.as<T>() + r * a.cols, a.x.as<T>() + r * a.cols, a.cols,
                              static_cast<uint64_t>(a.key.first_row + r), a.key, threshold, factor);
                 });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const DropoutKernels* DropoutKernels::cpu() {
  static constexpr DropoutKernels table{.dropout = cpu::dropout};
  return &table;
}

}  // namespace sherd
