// Sums. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/reduce_op.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// dst[i] = reduction over s of sources[s][begin + i], for i in [0, count), in the pairwise tree of
/// Communicator with sources in rank order. bf16 and f16 are reduced in fp32 and rounded once, the others in
/// their own type; integers wrap. dst may be exactly sources[s] + begin of any s; otherwise it must not
/// overlap what is read. At least one source; any dtype but u8. Communicators run it inside their own work
/// (ReduceKernels::reduce) and has no queueing function of its own.
struct ReduceArgs {
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  void* dst = nullptr;
  std::vector<const void*> sources;
  int64_t begin = 0, count = 0;
};

struct ReduceKernels {
  static constexpr const char* kName = "reduce";
  static const ReduceKernels* reference();
  static const ReduceKernels* cpu();
  static const ReduceKernels* cuda();

  void (*reduce)(ExecutionContext&, const ReduceArgs&);
  void (*accumulate_sum)(ExecutionContext&, double* out, Ref x, int64_t count);
};

namespace ops {

/// out[0] += sum of x in double, in an order that depends on the element count alone (CPU: increasing); out
/// f64 [1], x f32 (f64 on the reference kernels).
void accumulate_sum(Stream& s, const Tensor& out, const Tensor& x);

}  // namespace ops
}  // namespace sherd
