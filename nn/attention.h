// Self-attention.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Causal self-attention within each of `batch` sequences of equal length: qkv [batch * seq, 3 * heads * head_dim]
/// with q, k and v side by side, the result [batch * seq, heads * head_dim]; scores are scaled by 1/sqrt(head_dim).
/// Keeps qkv, the result and one f32 for each row and head. (Vaswani et al., 2017; computed by blocks as Dao et al.,
/// FlashAttention, 2022.)
Var causal_attention(const Var& qkv, int64_t batch, int64_t heads);

}  // namespace sherd::nn
