#include <sherd/kernels/reduce/reduce.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

void accumulate_sum(Stream& s, const Tensor& out, const Tensor& x) {
  Check check("accumulate_sum");
  check.dtype("out", out, DType::f64).count("out", out, 1).dtype("x", x, kWide).done();
  queue(s, "accumulate_sum", kernels<ReduceKernels>(s).accumulate_sum, out.data<double>(), ref(x), x.numel());
}

}  // namespace sherd::ops
