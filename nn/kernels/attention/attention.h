// Self-attention. ops.h says what holds for all operations.
#pragma once

#include <algorithm>
#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Causal self-attention over packed rows: qkv is [batch*seq, (heads + 2*kv_heads)*head_dim] with the heads of q, of k
/// and of v side by side; out is [batch*seq, heads*head_dim]; softmax scale is 1/sqrt(head_dim). Query head h uses key
/// and value head h / (heads/kv_heads): with kv_heads below heads these are grouped queries (Ainslie et al., GQA,
/// 2023), with one of them multi-query attention. lse f32 [batch, heads, seq] is the log-sum-exp of each score row,
/// kept for backward. With `starts`, position t of a sequence sees [starts[t], t] alone: several documents in a row, each of
/// whose positions has the document's first one. With `lengths`, rows of sequence b from lengths[b] on are padding:
/// computed as the others, and not counted by max_logits.
struct AttentionArgs {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Ref qkv{}, out{};
  float* lse = nullptr;
  float* max_logits = nullptr;       // forward, f32 [heads] or null
  const int32_t* starts = nullptr;   // [batch, seq] or null
  const int32_t* lengths = nullptr;  // forward, [batch] or null
  Ref dout{}, dqkv{};                // backward; dqkv is overwritten
  /// Keys that a row sees at most, its own included; 0: all before it. See first_key().
  int64_t window = 0;

  /// Rows of sequence `item` that are not padding.
  int64_t rows_of(int64_t item) const {
    return lengths == nullptr ? seq : std::min<int64_t>(seq, lengths[item]);
  }
};

/// The first key that row `row` of a sequence sees; the last one is its own. (Beltagy et al., Longformer, 2020, arXiv
/// 2004.05150, causal as in Mistral 7B, 2023.)
constexpr int64_t first_key(int64_t window, int64_t row) {
  return window > 0 && row >= window ? row - window + 1 : 0;
}
/// Pairs of a row and a key that it sees, in a sequence of `seq` rows.
constexpr int64_t seen_pairs(int64_t window, int64_t seq) {
  const int64_t most = window > 0 && window < seq ? window : seq;
  return most * (most + 1) / 2 + (seq - most) * most;
}

struct CachedAttentionArgs;  // cached_attention.h

struct AttentionKernels {
  static constexpr const char* kName = "attention";
  static const AttentionKernels* reference();
  static const AttentionKernels* cpu();
  static const AttentionKernels* cuda();

  void (*attention_forward)(ExecutionContext&, const AttentionArgs&);
  void (*attention_backward)(ExecutionContext&, const AttentionArgs&);
  void (*cached_attention)(ExecutionContext&, const CachedAttentionArgs&);
  /// Returns the scratch bytes that forward or, with dqkv, backward requests with so many threads; null: none.
  int64_t (*scratch)(const AttentionArgs&, int threads) = nullptr;
};
Work work_of(const Device& device, const AttentionArgs& a);

namespace ops {

/// seq and head_dim follow from the shapes. kv_heads divides heads; 0 means as many as heads.
/// @param max_logits where defined, f32 [heads]: element h is raised to the largest score q.k/sqrt(head_dim) of head h
///   over the batch, its rows that are not padding, and the pairs that the mask leaves, if that is larger than what is
///   there. The caller sets it to -infinity when a new maximum begins. A score that is NaN is passed over. It is what
///   clips query and key weights (QK-clip of MuonClip; Kimi K2, 2025).
/// @param window as AttentionArgs::window; one of the sequences' length or more has no effect.
/// @param starts i32 [batch, seq] or undefined. The caller guarantees starts[t] <= t, no starts[t] below that of t - 1, and
///   starts[starts[t]] == starts[t].
/// @param lengths i32 [batch] or undefined: rows of each sequence that are not padding, 0 to seq; they come first.
void attention_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& qkv, int64_t batch,
                       int64_t heads, int64_t kv_heads = 0, const Tensor& max_logits = {}, int64_t window = 0,
                       const Tensor& starts = {}, const Tensor& lengths = {});
/// out and lse are forward's, and window and starts its own. The gradients of a key or value head are sums over its
/// group's query heads in one fixed order.
void attention_backward(Stream& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, int64_t batch, int64_t heads,
                        int64_t kv_heads = 0, int64_t window = 0, const Tensor& starts = {});

}  // namespace ops
}  // namespace sherd
