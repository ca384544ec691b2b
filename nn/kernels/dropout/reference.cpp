#include <sherd/nn/kernels/dropout/dropout.h>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void dropout(ExecutionContext&, const DropoutArgs& a) {
  const uint32_t threshold = a.threshold();
  // f32 multiplies by the factor that other tables use, so that all have the same bits.
  const double factor = a.x.dtype == DType::f64 ? 1 / (1 - double{a.p}) : 1 / (1 - a.p);
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(a.key.key), static_cast<uint32_t>(a.key.key >> 32)};
  for (int64_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<uint64_t>(a.key.first_row + r);
    for (int64_t c = 0; c < a.cols; ++c) {
      const auto words = philox4x32({static_cast<uint32_t>(c / 4), static_cast<uint32_t>(row),
                                     static_cast<uint32_t>(row >> 32), a.key.call},
                                    key);
      const int64_t i = r * a.cols + c;
      put(a.y, i, words[static_cast<size_t>(c % 4)] < threshold ? 0 : get(a.x, i) * factor);
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const DropoutKernels* DropoutKernels::reference() {
  static constexpr DropoutKernels table{.dropout = reference::dropout};
  return &table;
}

}  // namespace sherd
