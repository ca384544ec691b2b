#include <sherd/nn/attention.h>

#include <fmt/format.h>

#include <utility>

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

/// Sinks of the heads from first_head on, in f32; undefined without.
Tensor sinks_of(Stream& s, const AttentionOptions& o, int64_t first_head = 0) {
  return o.sinks.defined() ? as_dtype(s, o.sinks.data().flat(first_head, first_head + o.heads), DType::f32)
                           : Tensor();
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

/// Attention over whole sequences. @param first_head of o.sinks
Var attend(const Var& qkv, const AttentionOptions& o, int64_t kv_heads, int64_t width, int64_t first_head) {
  const int64_t batch = o.batch, heads = o.heads;
  const Tensor in = qkv.value();
  const Tensor out = like(in, {in.size(0), heads * width});
  const Tensor lse = like_f32(in, {batch, heads, in.size(0) / batch});
  const bool trains = qkv.tape() != nullptr && qkv.tape()->training();
  const Tensor raised = trains ? o.max_logits : Tensor();
  return function(
      {qkv},
      [&](Stream& s) {
        ops::attention_forward(s, out, lse, in, batch, heads, kv_heads, raised, o.window, o.starts,
                               o.lengths);
        if (const Tensor sinks = sinks_of(s, o, first_head); sinks.defined())
          ops::sinks_forward(s, out, lse, sinks);
        return out;
      },
      [in, out, lse, batch, kv_heads, o, first_head](Stream& s,
                                                     const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dqkv = like(in), dout = call.output().tensor(out);
        ops::attention_backward(s, dqkv, dout, out, lse, in, batch, o.heads, kv_heads, o.window, o.starts);
        if (o.sinks.defined() && !o.sinks.frozen())
          ops::sinks_backward(s, o.sinks.grad().flat(first_head, first_head + o.heads), dout, out, lse,
                              sinks_of(s, o, first_head));
        return {dqkv};
      },
      o.sinks.defined() ? std::vector<Parameter>{o.sinks} : std::vector<Parameter>{});
}

/// Attention of the rank's share of the heads over whole sequences, between two exchanges.
Var exchanged(const Var& qkv, AttentionOptions o, int64_t kv_heads, int64_t width) {
  const SequenceSlice slice = std::exchange(o.context, {});
  const int64_t ranks = slice.ranks.size(), q = o.heads * width, kv = kv_heads * width;
  if (o.heads % ranks != 0 || kv_heads % ranks != 0)
    throw InvalidArgument(
        fmt::format("attention: {} context-parallel ranks do not divide {} heads and {} key heads", ranks,
                    o.heads, kv_heads));
  o.heads /= ranks;
  const int64_t first_head = slice.ranks.rank() * o.heads;
  if (o.max_logits.defined()) o.max_logits = o.max_logits.flat(first_head, first_head + o.heads);
  const Var whole = slice.to_heads(qkv, {q, kv, kv}, o.batch);
  return slice.to_rows(attend(whole, o, kv_heads / ranks, width, first_head), {q}, o.batch);
}

/// Refuses attention over slices in the forward of a model whose ranks share sequences.
void require_whole_sequences(const Var& qkv, const AttentionOptions& o) {
  Unit* const unit = qkv.tape() != nullptr ? qkv.tape()->running_unit() : nullptr;
  if (unit == nullptr || unit->context_ranks() == o.context.ranks.size()) return;
  throw InvalidArgument(fmt::format(
      "attention: {} ranks share the sequences of unit '{}' (FullyShardOptions::context_dim), but "
      "AttentionOptions::context has {}; set it to the slice of this forward",
      unit->context_ranks(), unit->name(), o.context.ranks.size()));
}

}  // namespace

Var attention(const Var& qkv, const AttentionOptions& o) {
  const int64_t kv_heads = o.kv_heads == 0 ? o.heads : o.kv_heads;
  const int64_t width = width_of_head(qkv.value(), o, kv_heads);
  require_whole_sequences(qkv, o);
  if (o.cache != nullptr && o.context.cuts())
    throw InvalidArgument("attention: a cache keeps whole sequences; generate without context parallelism");
  if (o.cache != nullptr) return cached(qkv, o, kv_heads, width);
  return o.context.cuts() ? exchanged(qkv, o, kv_heads, width) : attend(qkv, o, kv_heads, width, 0);
}

}  // namespace sherd::nn
