// Kernel table of a device: one function pointer per operation, on raw memory, run inside a stream.
//
// The functions of ops.h check shapes and queue; a table only computes. Every table implements every entry.
// What an entry computes is said once, in the header of its family, at its argument struct or at the function
// of its name.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/ref.h>

namespace sherd {

// Complete in the headers of their families.
struct AdamWArgs;
struct AdamWCountArgs;
struct AttentionArgs;
struct CachedAttentionArgs;
struct ClipFactorArgs;
struct CopySegmentsArgs;
struct CrossEntropyArgs;
struct DropoutArgs;
struct EmbeddingArgs;
struct ExpertRowsArgs;
struct ExpertSortArgs;
struct GemmArgs;
struct GramApplyArgs;
struct GramIterateArgs;
struct GramProductArgs;
struct LayerNormArgs;
struct MuonMomentumArgs;
struct MuonUpdateArgs;
struct OrthogonalizeArgs;
struct QkClipArgs;
struct RandomBoundedArgs;
struct ReduceArgs;
struct RmsNormArgs;
struct RopeArgs;
struct RouteArgs;
struct RowRecordsArgs;
struct RowScalesArgs;
struct ScaleRowsArgs;
struct SoftmaxArgs;
struct StridedCopyArgs;
struct SwigluArgs;
struct VocabParallelArgs;
struct HeadScaleSegment;
struct ScaleSegment;
struct SquaresSegment;
enum class Activation : uint8_t;

struct KernelTable {
  const char* name;
  /// Whether activations may be f64; what is kept beside them, and gradients of weights, is f64 then, too.
  bool doubles = false;

  // elementwise.h
  void (*fill)(ExecutionContext&, Ref dst, int64_t count, double value);
  void (*cast)(ExecutionContext&, Ref dst, Ref src, int64_t count);
  void (*scale)(ExecutionContext&, Ref x, int64_t count, float factor);
  void (*scale_by)(ExecutionContext&, const std::vector<ScaleSegment>&, const float* factor);
  void (*clamp)(ExecutionContext&, const std::vector<ScaleSegment>&, float limit);
  void (*scaled_add)(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
  void (*scale_and_add)(ExecutionContext&, float* dst, float decay, float alpha, const float* src,
                        int64_t count);
  void (*add)(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
  void (*multiply)(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);

  // copy.h
  /// Between any two of host and device memory.
  void (*copy)(ExecutionContext&, void* dst, const void* src, int64_t bytes);
  void (*strided_copy)(ExecutionContext&, const StridedCopyArgs&);

  // reduce.h
  void (*reduce)(ExecutionContext&, const ReduceArgs&);
  void (*accumulate_sum)(ExecutionContext&, double* out, Ref x, int64_t count);

  // gemm.h
  void (*gemm)(ExecutionContext&, const GemmArgs&);

  // norm.h
  void (*rms_norm_forward)(ExecutionContext&, const RmsNormArgs&);
  void (*rms_norm_backward)(ExecutionContext&, const RmsNormArgs&);
  void (*layer_norm_forward)(ExecutionContext&, const LayerNormArgs&);
  void (*layer_norm_backward)(ExecutionContext&, const LayerNormArgs&);

  // attention.h
  void (*attention_forward)(ExecutionContext&, const AttentionArgs&);
  void (*attention_backward)(ExecutionContext&, const AttentionArgs&);

  // cached_attention.h
  void (*cached_attention)(ExecutionContext&, const CachedAttentionArgs&);

  // rope.h
  void (*rope)(ExecutionContext&, const RopeArgs&);

  // activation.h
  void (*gelu_forward)(ExecutionContext&, Ref y, Ref x, int64_t count);
  void (*gelu_backward)(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count);
  void (*add_bias)(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
  void (*bias_backward)(ExecutionContext&, Ref dbias, Ref dy, int64_t rows, int64_t cols);
  void (*activation_forward)(ExecutionContext&, Activation, Ref y, Ref x, int64_t count);
  void (*activation_backward)(ExecutionContext&, Activation, Ref dx, Ref dy, Ref x, int64_t count);
  void (*swiglu_forward)(ExecutionContext&, const SwigluArgs&);
  void (*swiglu_backward)(ExecutionContext&, const SwigluArgs&);

  // softmax.h
  void (*softmax_forward)(ExecutionContext&, const SoftmaxArgs&);
  void (*softmax_backward)(ExecutionContext&, const SoftmaxArgs&);

  // dropout.h
  void (*dropout)(ExecutionContext&, const DropoutArgs&);

  // embedding.h
  /// Finds an index outside [0, bound). On the CPU it throws InvalidArgument; `op` and `what` are static
  /// strings for the message. A device that runs beside the host fails the stream at a later call instead,
  /// and kernels that use the indices leave foreign memory alone meanwhile.
  void (*check_indices)(ExecutionContext&, const char* op, const char* what, const int32_t* indices,
                        int64_t count, int64_t bound);
  void (*embedding_forward)(ExecutionContext&, const EmbeddingArgs&);
  void (*embedding_backward)(ExecutionContext&, const EmbeddingArgs&);

  // loss.h
  void (*cross_entropy_forward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_backward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_forward_backward)(ExecutionContext&, const CrossEntropyArgs&);

  // vocab_parallel.h
  void (*vocab_parallel_partial)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_combine)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_backward)(ExecutionContext&, const VocabParallelArgs&);

  // experts.h
  void (*route_top_k)(ExecutionContext&, const RouteArgs&);
  void (*route_top_k_backward)(ExecutionContext&, const RouteArgs&);
  void (*sort_by_expert)(ExecutionContext&, const ExpertSortArgs&);
  void (*expand_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_gates_backward)(ExecutionContext&, const ExpertRowsArgs&);

  // optimizer.h
  void (*adamw_count)(ExecutionContext&, const AdamWCountArgs&);
  void (*adamw)(ExecutionContext&, const AdamWArgs&);

  // muon.h
  void (*muon_momentum)(ExecutionContext&, const MuonMomentumArgs&);
  void (*muon_update)(ExecutionContext&, const MuonUpdateArgs&);
  void (*copy_segments)(ExecutionContext&, const CopySegmentsArgs&);

  // orthogonalize.h
  void (*orthogonalize)(ExecutionContext&, const OrthogonalizeArgs&);
  void (*gram_product)(ExecutionContext&, const GramProductArgs&);
  void (*gram_iterate)(ExecutionContext&, const GramIterateArgs&);
  void (*gram_apply)(ExecutionContext&, const GramApplyArgs&);

  // squares.h
  void (*accumulate_squares)(ExecutionContext&, const std::vector<SquaresSegment>&);
  void (*accumulate_magnitudes)(ExecutionContext&, const std::vector<SquaresSegment>&);
  void (*largest_magnitude)(ExecutionContext&, float* largest, const std::vector<SquaresSegment>&);
  void (*add_words)(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count);
  void (*clip_factor)(ExecutionContext&, const ClipFactorArgs&);

  // qk_clip.h
  void (*qk_clip_factors)(ExecutionContext&, const QkClipArgs&);
  void (*scale_heads)(ExecutionContext&, const std::vector<HeadScaleSegment>&);

  // normuon.h
  void (*row_records)(ExecutionContext&, const RowRecordsArgs&);
  void (*row_scales)(ExecutionContext&, const RowScalesArgs&);
  void (*scale_rows)(ExecutionContext&, const ScaleRowsArgs&);

  // random_bounded.h
  void (*random_uniform)(ExecutionContext&, const RandomBoundedArgs&);
  void (*random_truncated_normal)(ExecutionContext&, const RandomBoundedArgs&);

  // random_normal.h
  void (*random_normal)(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                        float stddev);
};

/// The type of the function behind an entry of the table. A backend declares its kernels by it, with no
/// second copy of their parameters: `Kernel<&KernelTable::gemm> gemm;`.
template <auto Entry>
using Kernel = std::remove_pointer_t<std::remove_reference_t<decltype(std::declval<KernelTable&>().*Entry)>>;

/// Slow and obvious; the oracle of every test.
const KernelTable& reference_kernels();
/// Vectorised, threaded (OpenMP, ctx.threads), GEMM by oneDNN, singular values by LAPACK. Entries that need
/// no speed are the reference's.
const KernelTable& cpu_kernels();
/// On the GPU (kernels/cuda). @throws NotCompiled without CUDA.
const KernelTable& cuda_kernels();

}  // namespace sherd
