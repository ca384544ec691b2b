#include <sherd/nn/kernels/sinks/sinks.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void sinks_forward(ExecutionContext&, const SinksArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t t = 0; t < a.seq; ++t) {
        const double lse = a.lse[a.sum(b, h, t)], sink = a.sinks[h], most = std::max(lse, sink);
        const double with = most + std::log(std::exp(lse - most) + std::exp(sink - most));
        for (int64_t d = 0; d < a.head_dim; ++d)
          put(a.out, a.row(b, h, t) + d, get(a.out, a.row(b, h, t) + d) * std::exp(lse - with));
        a.lse[a.sum(b, h, t)] = static_cast<float>(with);
      }
}

void sinks_backward(ExecutionContext&, const SinksArgs& a) {
  for (int64_t h = 0; h < a.heads; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t t = 0; t < a.seq; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < a.head_dim; ++d)
          dot += get(a.dout, a.row(b, h, t) + d) * get(a.out, a.row(b, h, t) + d);
        sum += std::exp(a.sinks[h] - static_cast<double>(a.lse[a.sum(b, h, t)])) * dot;
      }
    a.dsinks[h] -= static_cast<float>(sum);
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const SinksKernels* SinksKernels::reference() {
  static constexpr SinksKernels table{.sinks_forward = reference::sinks_forward,
                                      .sinks_backward = reference::sinks_backward};
  return &table;
}

}  // namespace sherd
