// Attention of a few new rows over cached keys and values, for generation of text. ops.h says what holds for
// all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Causal attention of `rows` new rows of one sequence, at positions length, length + 1, ...: row i attends
/// to the rows [0, length + i] of k and v, [capacity, kv_heads * head_dim] each. q's heads are the first
/// columns of its rows, which are q_stride elements apart; out is [rows, heads * head_dim]. Heads, groups and
/// scale are those of AttentionArgs, and so is the arithmetic but for the order of sums.
struct CachedAttentionArgs {
  int64_t rows = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0, q_stride = 0;
  int64_t window = 0;            // as AttentionArgs::window
  const float* sinks = nullptr;  // [heads] or null: as SinksArgs::sinks
  Ref q{}, k{}, v{}, out{};
};

namespace ops {

/// q [rows, columns] of at least heads * head_dim columns: a packed qkv serves as it is. k and v hold the new
/// rows already, at [length, length + rows); later rows are not read. The head_dim follows from out.
/// kv_heads divides heads; 0 means as many as heads. Without a gradient. `sinks`, where defined, is f32 [heads].
/// @throws ShapeMismatch also when length + rows is more than k and v have; InvalidArgument for a negative
/// length.
void cached_attention(Stream& s, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      int64_t length, int64_t heads, int64_t kv_heads = 0, int64_t window = 0,
                      const Tensor& sinks = {});

}  // namespace ops
}  // namespace sherd
