#include <sherd/nn/kernels/attention/cached_attention.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/nn/kernels/attention/attention.h>

namespace sherd::ops {

using namespace door;

void cached_attention(Stream& s, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      int64_t length, int64_t heads, int64_t kv_heads, int64_t window, const Tensor& sinks) {
  Check check("cached_attention");
  check.dims("q", q, 2).dims("out", out, 2).dims("k", k, 2);
  check.dtype("q", q, kActivations);
  for (const auto& [name, t] : {std::pair("out", out), std::pair("k", k), std::pair("v", v)})
    check.dtype(name, t, q.dtype());
  if (kv_heads == 0) kv_heads = heads;
  require(
      heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
      fmt::format(
          "cached_attention: {} key heads for {} query heads; both must be positive and kv_heads must divide "
          "heads",
          kv_heads, heads));
  require(length >= 0, fmt::format("cached_attention: length {} must not be negative", length));
  require(window >= 0, fmt::format("cached_attention: window {} must not be negative", window));
  const int64_t rows = q.size(0), head_dim = out.size(1) / heads;
  check.that(out.size(0) == rows && out.size(1) == heads * head_dim,
             fmt::format("out is {}, must be [{}, {} x head_dim]", to_string(out.shape()), rows, heads));
  check.that(q.size(1) >= heads * head_dim, fmt::format("q is {}, must have {} x {} columns or more",
                                                        to_string(q.shape()), heads, head_dim));
  check.that(k.size(0) >= length + rows && k.size(1) == kv_heads * head_dim,
             fmt::format("k is {}, must be [at least {} + {}, {} x {}]", to_string(k.shape()), length, rows,
                         kv_heads, head_dim));
  if (sinks.defined()) check.dtype("sinks", sinks, DType::f32).shape("sinks", sinks, {heads});
  check.shape("v", v, k.shape()).done();
  require_distinct("cached_attention", out, q);
  const CachedAttentionArgs a{.rows = rows,
                              .length = length,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .q_stride = q.size(1),
                              .window = window < length + rows ? window : 0,
                              .sinks = pointer<float>(sinks),
                              .q = ref(q),
                              .k = ref(k),
                              .v = ref(v),
                              .out = ref(out)};
  queue(s, {"cached_attention", WorkKind::attention}, kernels<AttentionKernels>(s).cached_attention, a);
}

}  // namespace sherd::ops
