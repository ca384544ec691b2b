#include <sherd/kernels/ops/reduce.h>

#include <sherd/kernels/ops/detail/door.h>

namespace sherd::ops {

using namespace door;

void accumulate_sum(Stream& s, const Tensor& out, const Tensor& x) {
  Check("accumulate_sum").dtype("out", out, DType::f64).dtype("x", x, DType::f32).count("out", out, 1).done();
  queue(s, "accumulate_sum", kernels(s).accumulate_sum, out.data<double>(), x.data<float>(), x.numel());
}

}  // namespace sherd::ops
