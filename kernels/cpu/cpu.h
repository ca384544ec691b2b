// Declarations of the fast CPU kernels and dispatch on the dtype. Private to kernels/cpu/.
#pragma once

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/ops/kernel_table.h>

namespace sherd::cpu {

/// Calls f(T{}) with the activation type of `t`; ops.h lets no other dtype through.
template <class F>
void with_activation(DType t, F&& f) {
  if (t == DType::f32) return f(float{});
  if (t == DType::bf16) return f(bf16{});
  throw InvalidArgument("cpu kernels: the activation dtype must be f32 or bf16");
}

/// The same with the types of packed messages and copies of weights: f16 too.
template <class F>
void with_payload(DType t, F&& f) {
  if (t == DType::f16) return f(f16{});
  with_activation(t, f);
}

/// dst = v rounded to its type. (Assigning bf16(v) in place would stop GCC 12 from vectorising the loop.)
inline void store(float& dst, float v) { dst = v; }
inline void store(bf16& dst, float v) { dst = bf16(v); }
inline void store(f16& dst, float v) { dst = f16(v); }

void fill(ExecutionContext&, Ref dst, int64_t count, double value);
void cast(ExecutionContext&, Ref dst, Ref src, int64_t count);
void scale(ExecutionContext&, Ref x, int64_t count, float factor);
void scaled_add(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
void scale_and_add(ExecutionContext&, float* dst, float decay, float alpha, const float* src, int64_t count);
void add(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
void gemm(ExecutionContext&, const GemmArgs&);
void rms_norm_forward(ExecutionContext&, const RmsNormArgs&);
void rms_norm_backward(ExecutionContext&, const RmsNormArgs&);
void attention_forward(ExecutionContext&, const AttentionArgs&);
void attention_backward(ExecutionContext&, const AttentionArgs&);
void gelu_forward(ExecutionContext&, Ref y, Ref x, int64_t count);
void gelu_backward(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count);
void embedding_forward(ExecutionContext&, const EmbeddingArgs&);
void embedding_backward(ExecutionContext&, const EmbeddingArgs&);
void cross_entropy_forward(ExecutionContext&, const CrossEntropyArgs&);
void cross_entropy_backward(ExecutionContext&, const CrossEntropyArgs&);
void cross_entropy_forward_backward(ExecutionContext&, const CrossEntropyArgs&);
void route_top_k(ExecutionContext&, const RouteArgs&);
void route_top_k_backward(ExecutionContext&, const RouteArgs&);
void expand_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_gates_backward(ExecutionContext&, const ExpertRowsArgs&);
void add_bias(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
void bias_backward(ExecutionContext&, float* dbias, Ref dy, int64_t rows, int64_t cols);
void vocab_parallel_partial(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_combine(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_backward(ExecutionContext&, const VocabParallelArgs&);
void adamw(ExecutionContext&, const AdamWArgs&);
void muon_momentum(ExecutionContext&, const MuonMomentumArgs&);
void muon_update(ExecutionContext&, const MuonUpdateArgs&);
void copy_segments(ExecutionContext&, const CopySegmentsArgs&);
void orthogonalize(ExecutionContext&, const OrthogonalizeArgs&);
void gram_product(ExecutionContext&, const GramProductArgs&);
void gram_iterate(ExecutionContext&, const GramIterateArgs&);
void gram_apply(ExecutionContext&, const GramApplyArgs&);
void accumulate_squares(ExecutionContext&, const std::vector<SquaresSegment>&);

}  // namespace sherd::cpu
