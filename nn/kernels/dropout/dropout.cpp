#include <sherd/nn/kernels/dropout/dropout.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

void dropout(Stream& s, const Tensor& y, const Tensor& x, float p, const DropoutKey& key) {
  Check check("dropout");
  check.dtype("x", x, kActivations).done();
  check.dtype("y", y, x.dtype()).shape("y", y, x.shape()).done();
  require(p >= 0 && p < 1, fmt::format("dropout: the probability {} to drop an element is not in [0, 1)", p));
  require(key.first_row >= 0, fmt::format("dropout: the first row {} is negative", key.first_row));
  const DropoutArgs a{.rows = row_count(x.shape()),
                      .cols = row_size(x.shape()),
                      .x = ref(x),
                      .y = ref(y),
                      .p = p,
                      .key = key};
  require(a.cols < int64_t{1} << 34,
          fmt::format("dropout: rows of {} elements are too long; the random stream covers fewer than 2^34",
                      a.cols));
  queue(s, "dropout", kernels<DropoutKernels>(s).dropout, a);
}

}  // namespace sherd::ops
