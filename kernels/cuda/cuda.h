// Declarations of the CUDA kernels, with what their sources share. Private to kernels/cuda/.
//
// Every function issues on the context's stream and returns; all memory is the device's but where
// kernel_table.h says otherwise. Sums have a fixed order that depends on shapes alone: no floating-point
// atomics.
#pragma once

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/ops/kernel_table.h>

namespace sherd::cuda {

void fill(ExecutionContext&, Ref dst, int64_t count, double value);
void copy(ExecutionContext&, void* dst, const void* src, int64_t bytes);
void cast(ExecutionContext&, Ref dst, Ref src, int64_t count);
void scale(ExecutionContext&, Ref x, int64_t count, float factor);
void scale_by(ExecutionContext&, const std::vector<ScaleSegment>&, const float* factor);
void scaled_add(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
void scale_and_add(ExecutionContext&, float* dst, float decay, float alpha, const float* src, int64_t count);
void add(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
void strided_copy(ExecutionContext&, const StridedCopyArgs&);
void add_words(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count);
void reduce(ExecutionContext&, const ReduceArgs&);
void gelu_forward(ExecutionContext&, Ref y, Ref x, int64_t count);
void gelu_backward(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count);
void add_bias(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
void bias_backward(ExecutionContext&, float* dbias, Ref dy, int64_t rows, int64_t cols);
void embedding_forward(ExecutionContext&, const EmbeddingArgs&);
void embedding_backward(ExecutionContext&, const EmbeddingArgs&);
void check_indices(ExecutionContext&, const char* op, const char* what, const int32_t* indices, int64_t count,
                   int64_t bound);
void random_normal(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                   float stddev);
void adamw_count(ExecutionContext&, const AdamWCountArgs&);
void adamw(ExecutionContext&, const AdamWArgs&);
void muon_momentum(ExecutionContext&, const MuonMomentumArgs&);
void muon_update(ExecutionContext&, const MuonUpdateArgs&);
void copy_segments(ExecutionContext&, const CopySegmentsArgs&);
void accumulate_squares(ExecutionContext&, const std::vector<SquaresSegment>&);
void accumulate_sum(ExecutionContext&, double* out, const float* x, int64_t count);
void clip_factor(ExecutionContext&, const ClipFactorArgs&);
void rms_norm_forward(ExecutionContext&, const RmsNormArgs&);
void rms_norm_backward(ExecutionContext&, const RmsNormArgs&);
void cross_entropy_forward(ExecutionContext&, const CrossEntropyArgs&);
void cross_entropy_backward(ExecutionContext&, const CrossEntropyArgs&);
void cross_entropy_forward_backward(ExecutionContext&, const CrossEntropyArgs&);
void vocab_parallel_partial(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_combine(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_backward(ExecutionContext&, const VocabParallelArgs&);
void route_top_k(ExecutionContext&, const RouteArgs&);
void route_top_k_backward(ExecutionContext&, const RouteArgs&);
void sort_by_expert(ExecutionContext&, const ExpertSortArgs&);
void expand_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_gates_backward(ExecutionContext&, const ExpertRowsArgs&);
void attention_forward(ExecutionContext&, const AttentionArgs&);
void attention_backward(ExecutionContext&, const AttentionArgs&);
void gemm(ExecutionContext&, const GemmArgs&);
void orthogonalize(ExecutionContext&, const OrthogonalizeArgs&);
void gram_product(ExecutionContext&, const GramProductArgs&);
void gram_iterate(ExecutionContext&, const GramIterateArgs&);
void gram_apply(ExecutionContext&, const GramApplyArgs&);

}  // namespace sherd::cuda
