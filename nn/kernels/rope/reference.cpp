#include <sherd/nn/kernels/rope/rope.h>

#include <cmath>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void rope(ExecutionContext&, const RopeArgs& a) {
  const int64_t half = a.rotary / 2;
  for (int64_t row = 0; row < a.batch * a.seq; ++row) {
    const auto position = static_cast<float>(a.first_position + row % a.seq);
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t d = 0; d < half; ++d) {
        const float angle = position * a.inv_freq[d];
        const double cos = a.scale * std::cos(static_cast<double>(angle));
        const double sin = a.scale * std::sin(static_cast<double>(a.inverse ? -angle : angle));
        const int64_t i = row * a.columns + h * a.head_dim + d;
        const double x1 = get(a.x, i), x2 = get(a.x, i + half);
        put(a.y, i, x1 * cos - x2 * sin);
        put(a.y, i + half, x2 * cos + x1 * sin);
      }
      for (int64_t c = h * a.head_dim + a.rotary; c < (h + 1) * a.head_dim; ++c)
        put(a.y, row * a.columns + c, get(a.x, row * a.columns + c));
    }
    for (int64_t c = a.heads * a.head_dim; c < a.columns; ++c)
      put(a.y, row * a.columns + c, get(a.x, row * a.columns + c));
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const RopeKernels* RopeKernels::reference() {
  static constexpr RopeKernels table{.rope = reference::rope};
  return &table;
}

}  // namespace sherd
