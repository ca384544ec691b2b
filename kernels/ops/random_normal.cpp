#include <sherd/kernels/ops/random_normal.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/random/random.h>

namespace sherd::ops {

using namespace door;

void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev) {
  Check("random_normal").dtype("dst", dst, DType::f32).done();
  require(begin >= 0, fmt::format("random_normal of '{}': first element {} is negative", name, begin));
  queue(s, "random_normal", kernels(s).random_normal, dst.data<float>(), begin, dst.numel(),
        hash64(seed, name), mean, stddev);
}

}  // namespace sherd::ops
