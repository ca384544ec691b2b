#include <sherd/nn/kernels/rope/rope.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

void rope(Stream& s, const Tensor& y, const Tensor& x, const Tensor& inv_freq, int64_t batch, int64_t heads,
          int64_t first_position, bool inverse, int64_t head_dim, float scale) {
  Check check("rope");
  check.dims("x", x, 2).dims("inv_freq", inv_freq, 1);
  check.dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("inv_freq", inv_freq, DType::f32);
  require(batch > 0 && heads > 0, fmt::format("rope: batch {} and heads {} must be positive", batch, heads));
  require(first_position >= 0, fmt::format("rope: first_position {} must not be negative", first_position));
  const int64_t rotary = 2 * inv_freq.size(0);
  if (head_dim == 0) head_dim = rotary;
  require(head_dim >= rotary,
          fmt::format("rope: heads of {} columns, of which {} are rotated; they have at least as many",
                      head_dim, rotary));
  check.shape("y", y, x.shape());
  check.that(x.size(0) % batch == 0 && x.size(1) >= heads * head_dim,
             fmt::format("x is {}, must be [{} x seq, at least {} heads x {}]", to_string(x.shape()), batch,
                         heads, head_dim));
  check.done();
  if (y.raw() != x.raw()) require_distinct("rope", y, x);
  const RopeArgs a{.batch = batch,
                   .seq = x.size(0) / batch,
                   .heads = heads,
                   .head_dim = head_dim,
                   .rotary = rotary,
                   .columns = x.size(1),
                   .first_position = first_position,
                   .inverse = inverse,
                   .scale = scale,
                   .x = ref(x),
                   .y = ref(y),
                   .inv_freq = inv_freq.data<float>()};
  queue(s, "rope", kernels<RopeKernels>(s).rope, a);
}

}  // namespace sherd::ops
