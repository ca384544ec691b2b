#include <sherd/dtensor/detail/strided_copy.h>

#include <fmt/format.h>

#include <sherd/kernels/ops.h>

namespace sherd {

DimBlock dim_block(const Shape& shape, int d, int64_t offset, int64_t size) {
  int64_t before = 1, after = 1;
  for (int i = 0; i < static_cast<int>(shape.size()); ++i) {
    if (i < d) before *= shape[i];
    if (i > d) after *= shape[i];
  }
  return {{offset * after, shape.at(d) * after}, before, size * after};
}

void strided_copy(Stream& stream, const Tensor& dst, Strided to, const Tensor& src, Strided from,
                  int64_t blocks, int64_t run) {
  if (blocks <= 0 || run <= 0) return;
  const auto fits = [&](const Tensor& t, Strided s) {
    return s.begin >= 0 && s.stride >= 0 && s.begin + (blocks - 1) * s.stride + run <= t.numel();
  };
  if (dst.dtype() != src.dtype() || !fits(dst, to) || !fits(src, from))
    throw ShapeMismatch(
        fmt::format("strided_copy of {} runs of {} elements from {} {} (begin {}, stride {}) to {} {} (begin "
                    "{}, stride {})",
                    blocks, run, name_of(src.dtype()), to_string(src.shape()), from.begin, from.stride,
                    name_of(dst.dtype()), to_string(dst.shape()), to.begin, to.stride));
  if (blocks == 1 || (to.stride == run && from.stride == run)) {
    ops::copy(stream, dst.flat(to.begin, to.begin + blocks * run),
              src.flat(from.begin, from.begin + blocks * run));
    return;
  }
  ops::strided_copy(stream, dst.flat(to.begin, dst.numel()), to.stride, src.flat(from.begin, src.numel()),
                    from.stride, blocks, run);
}

}  // namespace sherd
