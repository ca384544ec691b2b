#include <sherd/nn/attention.h>

#include <fmt/format.h>

#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/attention/attention.h>
#include <sherd/nn/kernels/attention/cached_attention.h>
#include <sherd/nn/kernels/sinks/sinks.h>

namespace sherd::nn {

using namespace detail;

namespace {

/// Returns the width of a head. @throws ShapeMismatch, InvalidArgument.
int64_t width_of_head(const Tensor& qkv, const AttentionOptions& o, int64_t kv_heads) {
  if (o.batch < 1 || o.heads < 1 || kv_heads < 1 || o.heads % kv_heads != 0)
    throw InvalidArgument(fmt::format(
        "attention: batch {}, heads {} and kv_heads {}; all must be positive and kv_heads must divide heads",
        o.batch, o.heads, kv_heads));
  const int64_t columns = o.heads + 2 * kv_heads;  // in heads
  if (qkv.dim() != 2 || qkv.size(0) % o.batch != 0 || qkv.size(1) % columns != 0 ||
      (o.head_dim != 0 && qkv.size(1) != columns * o.head_dim))
    throw ShapeMismatch(
        fmt::format("attention: qkv is {}, must be [batch * seq, (heads + 2 * kv_heads) * head_dim] = [{} * "
                    "seq, ({} + 2 * {}) * {}]",
                    to_string(qkv.shape()), o.batch, o.heads, kv_heads,
                    o.head_dim == 0 ? "head_dim" : std::to_string(o.head_dim)));
  return qkv.size(1) / columns;
}

/// Sinks in f32; undefined without.
Tensor sinks_of(Stream& s, const AttentionOptions& o) {
  return o.sinks.defined() ? as_dtype(s, o.sinks.data(), DType::f32) : Tensor();
}

/// Attention of rows that follow cached ones. The first rows are a sequence of their own: training's kernel
/// is faster there.
Var cached(const Var& qkv, const AttentionOptions& o, int64_t kv_heads, int64_t width) {
  if (o.starts.defined())
    throw InvalidArgument("attention: a cache keeps one document; leave `starts` undefined");
  if (o.batch != 1)
    throw InvalidArgument(
        fmt::format("attention: a cache keeps one sequence, not {}; run them one by one", o.batch));
  if (qkv.tape() != nullptr && qkv.tape()->training())
    throw InvalidArgument(
        "attention: a cache is for generation, through which no gradient goes; run it inside NoGrad");
  const Tensor in = qkv.value();
  KvCache::Layer& kept = *o.cache;
  if (kept.kv_heads() != kv_heads || kept.head_dim() != width)
    throw ShapeMismatch(fmt::format("attention: {} key heads of {} components, but the cache keeps {} of {}",
                                    kv_heads, width, kept.kv_heads(), kept.head_dim()));
  const int64_t before = kept.length();
  const Tensor out = like(in, {in.size(0), o.heads * width});
  return function(
      {qkv},
      [&](Stream& s) {
        kept.append(s, in, o.heads);
        const Tensor sinks = sinks_of(s, o);
        if (before == 0) {
          const Tensor lse = like_f32(in, {1, o.heads, in.size(0)});
          ops::attention_forward(s, out, lse, in, 1, o.heads, kv_heads, {}, o.window);
          if (sinks.defined()) ops::sinks_forward(s, out, lse, sinks);
        } else {
          ops::cached_attention(s, out, in, kept.keys(), kept.values(), before, o.heads, kv_heads, o.window,
                                sinks);
        }
        return out;
      },
      nullptr);
}

}  // namespace

Var attention(const Var& qkv, const AttentionOptions& o) {
  const int64_t batch = o.batch, heads = o.heads, kv_heads = o.kv_heads == 0 ? o.heads : o.kv_heads;
  const Tensor in = qkv.value();
  const int64_t width = width_of_head(in, o, kv_heads);
  if (o.cache != nullptr) return cached(qkv, o, kv_heads, width);
  const Tensor out = like(in, {in.size(0), heads * width});
  const Tensor lse = like_f32(in, {batch, heads, in.size(0) / batch});
  const bool trains = qkv.tape() != nullptr && qkv.tape()->training();
  const Tensor raised = trains ? o.max_logits : Tensor();
  return function(
      {qkv},
      [&](Stream& s) {
        ops::attention_forward(s, out, lse, in, batch, heads, kv_heads, raised, o.window, o.starts,
                               o.lengths);
        if (const Tensor sinks = sinks_of(s, o); sinks.defined()) ops::sinks_forward(s, out, lse, sinks);
        return out;
      },
      [in, out, lse, batch, kv_heads, o](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dqkv = like(in), dout = call.output().tensor(out);
        ops::attention_backward(s, dqkv, dout, out, lse, in, batch, o.heads, kv_heads, o.window, o.starts);
        if (o.sinks.defined() && !o.sinks.frozen())
          ops::sinks_backward(s, o.sinks.grad(), dout, out, lse, sinks_of(s, o));
        return {dqkv};
      },
      o.sinks.defined() ? std::vector<Parameter>{o.sinks} : std::vector<Parameter>{});
}

}  // namespace sherd::nn
