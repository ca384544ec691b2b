// Declarations of the reference kernels and typed access to untyped memory. Private to kernels/.
#pragma once

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/ops/kernel_table.h>

namespace sherd::reference {

/// Element i, widened to double (exact for every dtype but i64).
inline double get(Ref r, int64_t i) {
  switch (r.dtype) {
    case DType::f32:
      return r.as<float>()[i];
    case DType::bf16:
      return float(r.as<bf16>()[i]);
    case DType::f16:
      return float(r.as<f16>()[i]);
    case DType::f64:
      return r.as<double>()[i];
    case DType::i32:
      return r.as<int32_t>()[i];
    case DType::i64:
      return static_cast<double>(r.as<int64_t>()[i]);
    case DType::u8:
      return r.as<uint8_t>()[i];
  }
  throw InvalidArgument("reference kernels: unknown dtype");
}

/// Stores v as element i; the 16-bit formats round through f32.
inline void put(Ref r, int64_t i, double v) {
  switch (r.dtype) {
    case DType::f32:
      r.as<float>()[i] = static_cast<float>(v);
      return;
    case DType::bf16:
      r.as<bf16>()[i] = bf16(static_cast<float>(v));
      return;
    case DType::f16:
      r.as<f16>()[i] = f16(static_cast<float>(v));
      return;
    case DType::f64:
      r.as<double>()[i] = v;
      return;
    case DType::i32:
      r.as<int32_t>()[i] = static_cast<int32_t>(v);
      return;
    case DType::i64:
      r.as<int64_t>()[i] = static_cast<int64_t>(v);
      return;
    case DType::u8:
      r.as<uint8_t>()[i] = static_cast<uint8_t>(v);
      return;
  }
  throw InvalidArgument("reference kernels: unknown dtype");
}

void fill(ExecutionContext&, Ref dst, int64_t count, double value);
void copy(ExecutionContext&, void* dst, const void* src, int64_t bytes);
void strided_copy(ExecutionContext&, const StridedCopyArgs&);
void reduce(ExecutionContext&, const ReduceArgs&);
void check_indices(ExecutionContext&, const char* op, const char* what, const int32_t* indices, int64_t count,
                   int64_t bound);
void cast(ExecutionContext&, Ref dst, Ref src, int64_t count);
void scale_by(ExecutionContext&, const std::vector<ScaleSegment>&, const float* factor);
void add_words(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count);
void clip_factor(ExecutionContext&, const ClipFactorArgs&);
void scale(ExecutionContext&, Ref x, int64_t count, float factor);
void scaled_add(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
void scale_and_add(ExecutionContext&, float* dst, float decay, float alpha, const float* src, int64_t count);
void add(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
void accumulate_sum(ExecutionContext&, double* out, const float* x, int64_t count);
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
void sort_by_expert(ExecutionContext&, const ExpertSortArgs&);
void expand_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_rows(ExecutionContext&, const ExpertRowsArgs&);
void combine_gates_backward(ExecutionContext&, const ExpertRowsArgs&);
void add_bias(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
void bias_backward(ExecutionContext&, float* dbias, Ref dy, int64_t rows, int64_t cols);
void vocab_parallel_partial(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_combine(ExecutionContext&, const VocabParallelArgs&);
void vocab_parallel_backward(ExecutionContext&, const VocabParallelArgs&);
void adamw_count(ExecutionContext&, const AdamWCountArgs&);
void adamw(ExecutionContext&, const AdamWArgs&);
void muon_momentum(ExecutionContext&, const MuonMomentumArgs&);
void muon_update(ExecutionContext&, const MuonUpdateArgs&);
void copy_segments(ExecutionContext&, const CopySegmentsArgs&);
void orthogonalize(ExecutionContext&, const OrthogonalizeArgs&);
void gram_product(ExecutionContext&, const GramProductArgs&);
void gram_iterate(ExecutionContext&, const GramIterateArgs&);
void gram_apply(ExecutionContext&, const GramApplyArgs&);
void accumulate_squares(ExecutionContext&, const std::vector<SquaresSegment>&);
void random_normal(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                   float stddev);

}  // namespace sherd::reference
