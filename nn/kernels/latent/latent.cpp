#include <sherd/nn/kernels/latent/latent.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

LatentArgs latent_args(const char* op, const Tensor& qkv, const Tensor& q, const Tensor& kv,
                       const Tensor& k_rope, const Tensor& inv_freq, const LatentHeads& h) {
  require(h.batch > 0 && h.heads > 0 && h.nope >= 0 && h.rope > 0 && h.rope % 2 == 0 && h.value > 0 &&
              h.first_position >= 0,
          fmt::format("{}: batch {}, heads {}, nope {}, rope {}, value {}, first_position {}; sizes must be "
                      "positive, nope "
                      "and first_position at least 0, rope even",
                      op, h.batch, h.heads, h.nope, h.rope, h.value, h.first_position));
  Check check(op);
  check.dims("q", q, 2).dtype("q", q, kActivations).dtype("inv_freq", inv_freq, DType::f32);
  check.dtype("kv", kv, q.dtype()).dtype("k_rope", k_rope, q.dtype()).dtype("qkv", qkv, q.dtype()).done();
  const int64_t rows = q.size(0);
  check.that(rows % h.batch == 0, fmt::format("{} rows are not {} equal sequences", rows, h.batch));
  check.shape("q", q, {rows, h.heads * h.key()}).shape("kv", kv, {rows, h.heads * (h.nope + h.value)});
  check.shape("k_rope", k_rope, {rows, h.rope}).shape("qkv", qkv, {rows, 3 * h.heads * h.width()});
  check.shape("inv_freq", inv_freq, {h.rope / 2}).done();
  return {.heads = h,
          .rows = rows,
          .seq = rows / h.batch,
          .q = ref(q),
          .kv = ref(kv),
          .k_rope = ref(k_rope),
          .qkv = ref(qkv),
          .inv_freq = inv_freq.data<float>()};
}

}  // namespace

void pack_latent(Stream& s, const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& k_rope,
                 const Tensor& inv_freq, const LatentHeads& heads) {
  const LatentArgs a = latent_args("pack_latent", qkv, q, kv, k_rope, inv_freq, heads);
  for (const Tensor& in : {q, kv, k_rope}) require_distinct("pack_latent", qkv, in);
  queue(s, "pack_latent", kernels<LatentKernels>(s).pack_latent, a);
}

void unpack_latent(Stream& s, const Tensor& dq, const Tensor& dkv, const Tensor& dk_rope, const Tensor& dqkv,
                   const Tensor& inv_freq, const LatentHeads& heads) {
  const LatentArgs a = latent_args("unpack_latent", dqkv, dq, dkv, dk_rope, inv_freq, heads);
  for (const Tensor& out : {dq, dkv, dk_rope}) require_distinct("unpack_latent", out, dqkv);
  queue(s, "unpack_latent", kernels<LatentKernels>(s).unpack_latent, a);
}

}  // namespace sherd::ops
