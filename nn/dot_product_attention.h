// Attention of queries to keys of another length, with a mask; composed of products and softmax.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

struct DotProductAttentionOptions {
  int64_t batch = 1;  ///< sequences, one after the other, in q as in k and v
  int64_t heads = 1;  ///< of q, k and v
  /// Added to the scaled scores [batch, heads, queries, keys], to which it broadcasts; -infinity hides a key. A query
  /// whose keys are all hidden gives NaN. Undefined: none.
  Var mask{};
};

/// Returns softmax(q k^T / sqrt(head_dim) + mask) v for each sequence and head: q [batch * queries, heads * head_dim], k
/// [batch * keys, heads * head_dim], v [batch * keys, heads * value_dim], the result [batch * queries, heads * value_dim].
/// Nothing is causal. It saves the probabilities, queries * keys for each head: attention() needs less for
/// self-attention. (Vaswani et al., 2017, arXiv:1706.03762.)
/// @throws ShapeMismatch for values that do not fit.
Var dot_product_attention(const Var& q, const Var& k, const Var& v,
                          const DotProductAttentionOptions& options);

}  // namespace sherd::nn
