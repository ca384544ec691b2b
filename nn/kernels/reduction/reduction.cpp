#include <sherd/nn/kernels/reduction/reduction.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/elementwise/elementwise.h>

namespace sherd::ops {

using namespace door;

namespace {

constexpr int64_t kTasks = 256;    // that a reduction is cut into, to be shared by threads
constexpr int64_t kLeast = 16384;  // elements of a task
constexpr int64_t kColumns = 256;  // neighbours that one task reduces

/// Returns the number of elements along n that one task takes. It depends on the sizes alone, as the bits of
/// a sum do.
int64_t chunk_of(int64_t outer, int64_t n, int64_t inner) {
  const int64_t columns = std::min(inner, kColumns), tasks = outer * ((inner + kColumns - 1) / kColumns);
  const int64_t cuts = std::min(kTasks / tasks, n * columns / kLeast);
  return cuts <= 1 ? n : (n + cuts - 1) / cuts;
}

}  // namespace

void reduce_dim(Stream& s, Reduction op, const Tensor& out, const Tensor& x, int64_t outer, int64_t n,
                int64_t inner, double factor) {
  Check check("reduce_dim");
  check.dtype("x", x, kActivations).done();
  check.dtype("out", out, {x.dtype(), wide(x.dtype())});
  check.count("x", x, outer * n * inner).count("out", out, outer * inner);
  check.that(op == Reduction::sum || (n > 0 && factor == 1), "a maximum needs an element, and no factor");
  check.done();
  if (out.numel() == 0) return;
  if (n == 0) return fill(s, out, 0);
  const auto reduce = kernels<ReductionKernels>(s).reduce;
  const char* what = op == Reduction::sum ? "sum" : "max";
  ReductionArgs a{
      .op = op, .outer = outer, .n = n, .inner = inner, .factor = factor, .x = ref(x), .out = ref(out)};
  a.chunk = chunk_of(outer, n, inner);
  if (a.chunks() == 1) return queue(s, what, reduce, a);
  // The parts, and then their sum.
  const Tensor parts = Tensor::empty(x.device(), {outer, a.chunks(), inner}, wide(x.dtype()),
                                     MemoryClass::scratch, "reduction");
  ReductionArgs last = a;
  a.factor = 1;
  a.out = last.x = ref(parts);
  last.n = last.chunk = a.chunks();
  queue(s, what, reduce, a);
  queue(s, what, reduce, last);
}

}  // namespace sherd::ops
