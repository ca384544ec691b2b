// Self-attention. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/ops/ref.h>

namespace sherd {

/// Causal self-attention over packed rows: qkv is [batch*seq, 3*heads*head_dim] with q, k, v side by side
/// (head h at columns h*head_dim of each third); out is [batch*seq, heads*head_dim]; softmax scale is
/// 1/sqrt(head_dim). lse f32 [batch, heads, seq] is the log-sum-exp of each score row, kept for backward.
struct AttentionArgs {
  int64_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  Ref qkv{}, out{};
  float* lse = nullptr;
  Ref dout{}, dqkv{};  // backward; dqkv is overwritten
};

namespace ops {

/// seq and head_dim follow from the shapes.
void attention_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& qkv, int64_t batch,
                       int64_t heads);
/// out and lse are forward's.
void attention_backward(Stream& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, int64_t batch, int64_t heads);

}  // namespace ops
}  // namespace sherd
