// Attention by bf16 products. Private to CPU kernels.
#pragma once

#include "cpu_heads.h"

namespace sherd::cpu {

/// Whether these tensors are bf16 and the processor has products for them.
bool bf16_attention(const AttentionArgs& a);

/// Floats of scratch memory of a thread.
int64_t bf16_forward_floats(const HeadLayout& l);
int64_t bf16_backward_floats(const HeadLayout& l);

/// Scores are f32; their exponentials are rounded to bf16 for the product with v. largest[batch * heads]: each head's
/// largest score.
void bf16_forward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a, float* largest);
/// Gradients of scores are rounded to bf16; dq, dk and dv are sums in f32, rounded once.
void bf16_backward(ExecutionContext& ctx, const HeadLayout& l, const AttentionArgs& a);

}  // namespace sherd::cpu
