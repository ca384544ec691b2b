#include <sherd/nn/kernels/attention/attention.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {

// Products of the scores that rows see: 2 in forward; 5 in backward, which computes them again.
Work work_of(const Device& device, const AttentionArgs& a) {
  const bool backward = a.dqkv.data != nullptr;
  const auto scratch = device.kernels<AttentionKernels>().scratch;
  const int64_t rows = a.batch * a.seq, heads = (backward ? 4 : 2) * (a.heads + a.kv_heads);
  return {.flops = (backward ? 10.0 : 4.0) * static_cast<double>(a.batch * a.heads) *
                   static_cast<double>(seen_pairs(a.window, a.seq) * a.head_dim),
          .bytes = rows * heads * a.head_dim * size_of(a.qkv.dtype),
          .scratch = scratch != nullptr ? scratch(a, device.threads()) : 0,
          .dtype = a.qkv.dtype,
          .width = a.head_dim};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

AttentionArgs attention_args(Check& check, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                             int64_t batch, int64_t heads, int64_t kv_heads, int64_t window,
                             const Tensor& starts) {
  check.dims("qkv", qkv, 2)
      .dtype("qkv", qkv, kActivations)
      .dtype("out", out, qkv.dtype())
      .dtype("lse", lse, DType::f32);
  require(batch > 0 && heads > 0,
          fmt::format("attention: batch {} and heads {} must be positive", batch, heads));
  if (kv_heads == 0) kv_heads = heads;
  require(
      kv_heads > 0 && heads % kv_heads == 0,
      fmt::format("attention: {} key heads for {} query heads; kv_heads must divide heads", kv_heads, heads));
  require(window >= 0, fmt::format("attention: window {} must not be negative", window));
  const int64_t columns = heads + 2 * kv_heads;  // in heads
  check.that(qkv.size(0) % batch == 0 && qkv.size(1) % columns == 0,
             fmt::format("qkv is {}, must be [{} x seq, ({} + 2 x {}) x head_dim]", to_string(qkv.shape()),
                         batch, heads, kv_heads));
  check.done();
  AttentionArgs a{.batch = batch,
                  .seq = qkv.size(0) / batch,
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_dim = qkv.size(1) / columns};
  check.shape("out", out, {batch * a.seq, heads * a.head_dim}).shape("lse", lse, {batch, heads, a.seq});
  if (starts.defined()) check.dtype("starts", starts, DType::i32).shape("starts", starts, {batch, a.seq});
  a.starts = pointer<int32_t>(starts);
  a.qkv = ref(qkv);
  a.out = ref(out);
  a.lse = lse.data<float>();
  a.window = window < a.seq ? window : 0;
  return a;
}

/// The first call of a shape may build a plan (cuDNN's), which loads kernels: InOrder.
void queue_attention(Stream& s, Operation what, void (*kernel)(ExecutionContext&, const AttentionArgs&),
                     const AttentionArgs& a) {
  Device& device = s.device();
  const auto place = [](const void* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % 16); };
  const InOrder in_order(
      device, device.kind() == DeviceKind::cuda &&
                  device.first_use({a.dqkv.data != nullptr, a.batch, a.seq, a.heads, a.kv_heads, a.head_dim,
                                    static_cast<int64_t>(a.qkv.dtype), a.max_logits != nullptr, a.window,
                                    a.starts != nullptr, place(a.qkv.data), place(a.out.data), place(a.lse),
                                    place(a.dout.data), place(a.dqkv.data)}));
  queue(s, what, kernel, a);
}

}  // namespace

void attention_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& qkv, int64_t batch,
                       int64_t heads, int64_t kv_heads, const Tensor& max_logits, int64_t window,
                       const Tensor& starts, const Tensor& lengths) {
  Check check("attention_forward");
  AttentionArgs a = attention_args(check, out, lse, qkv, batch, heads, kv_heads, window, starts);
  if (max_logits.defined())
    check.dtype("max_logits", max_logits, DType::f32).shape("max_logits", max_logits, {heads});
  if (lengths.defined()) check.dtype("lengths", lengths, DType::i32).shape("lengths", lengths, {batch});
  check.done();
  a.max_logits = pointer<float>(max_logits);
  a.lengths = pointer<int32_t>(lengths);
  queue_attention(s, {"attention_forward", WorkKind::attention},
                  kernels<AttentionKernels>(s).attention_forward, a);
}

void attention_backward(Stream& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, int64_t batch, int64_t heads, int64_t kv_heads,
                        int64_t window, const Tensor& starts) {
  Check check("attention_backward");
  AttentionArgs a = attention_args(check, out, lse, qkv, batch, heads, kv_heads, window, starts);
  check.dtype("dout", dout, qkv.dtype()).dtype("dqkv", dqkv, qkv.dtype());
  check.shape("dout", dout, out.shape()).shape("dqkv", dqkv, qkv.shape()).done();
  a.dout = ref(dout);
  a.dqkv = ref(dqkv);
  queue_attention(s, {"attention_backward", WorkKind::attention_backward},
                  kernels<AttentionKernels>(s).attention_backward, a);
}

}  // namespace sherd::ops
