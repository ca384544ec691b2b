// Attention between ranks that share sequences (context parallelism, nn/context_parallel.h).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <sherd/nn/context_parallel.h>

namespace sherd::torch {

/// Returns this rank's positions [batch, here, ...] of x [batch, slice.seq, ...]: tokens, position ids, targets that were shifted
/// before, and other values for each position. slice.first() is the first of them. A view, in a group of one x itself.
/// @throws ShapeMismatch; InvalidArgument for sequences shorter than the number of ranks.
at::Tensor slice_of(const at::Tensor& x, const sherd::nn::SequenceSlice& slice);

/// Replacement of at::scaled_dot_product_attention() in modules whose ranks share sequences (FullyShardOptions::context_dim). The
/// other functions of a transformer treat positions by themselves, and run on slices:
///
///     const auto ranks = sherd::nn::ContextParallel::of(mesh);          // once: it makes a communicator
///     ...
///     const sherd::nn::SequenceSlice slice{ranks, tokens.size(1)};
///     const at::Tensor logits = model(sherd::torch::slice_of(tokens, slice), slice);
///     ... forward(x, slice):
///     h = sherd::torch::context_attention(q, k, v, slice, {}, 0.0, /*is_causal=*/true);
///
/// query [batch, heads, here, width], key and value [batch, kv_heads, here, width] are the slices of each rank, and so is the
/// result. Ranks exchange heads for positions before attention and after it: each computes its share of the heads,
/// [rank, rank + 1) * heads / ranks, over whole sequences. The number of ranks divides heads and kv_heads. Heads have the bits
/// of one rank in libtorch's fused kernels, and are equal to rounding where it multiplies matrices. In a group of one it is
/// at::scaled_dot_product_attention().
///
/// attn_mask covers whole sequences and all heads: it is broadcast to [batch, heads, seq, seq]. Its gradient is that of the
/// rank's heads. Dropout draws for these heads from the rank's generator; seed ranks differently. Collective, forward and
/// backward: the loss of every rank depends on the result, with a factor of 0 where it counts nothing.
/// @throws ShapeMismatch for other shapes; InvalidArgument for numbers of heads that the ranks do not divide, sequences shorter
/// than the number of ranks, and a slice of other ranks than those that share the sequences of the calling model.
at::Tensor context_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const sherd::nn::SequenceSlice& slice,
                             const std::optional<at::Tensor>& attn_mask = {}, double dropout_p = 0.0,
                             bool is_causal = false, std::optional<double> scale = {},
                             bool enable_gqa = false);

}  // namespace sherd::torch
