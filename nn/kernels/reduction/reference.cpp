#include <sherd/nn/kernels/reduction/reduction.h>

#include <algorithm>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void reduce(ExecutionContext&, const ReductionArgs& a) {
  for (int64_t o = 0; o < a.outer; ++o)
    for (int64_t k = 0; k < a.chunks(); ++k)
      for (int64_t i = 0; i < a.inner; ++i) {
        const auto x = [&](int64_t j) { return get(a.x, (o * a.n + j) * a.inner + i); };
        const int64_t begin = k * a.chunk, end = std::min(a.n, begin + a.chunk);
        double result = a.op == Reduction::sum ? 0 : x(begin);
        for (int64_t j = begin; j < end; ++j)
          if (a.op == Reduction::sum)
            result += x(j);
          else if (x(j) > result || x(j) != x(j))
            result = x(j);
        put(a.out, (o * a.chunks() + k) * a.inner + i, a.factor * result);
      }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const ReductionKernels* ReductionKernels::reference() {
  static constexpr ReductionKernels table{.reduce = reference::reduce};
  return &table;
}

}  // namespace sherd
