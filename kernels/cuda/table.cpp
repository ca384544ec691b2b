#include "cuda.h"

namespace sherd {

const KernelTable& cuda_kernels() {
  static const KernelTable table{
      .name = "cuda",
      .fill = cuda::fill,
      .copy = cuda::copy,
      .strided_copy = cuda::strided_copy,
      .reduce = cuda::reduce,
      .check_indices = cuda::check_indices,
      .cast = cuda::cast,
      .scale = cuda::scale,
      .scale_by = cuda::scale_by,
      .scaled_add = cuda::scaled_add,
      .scale_and_add = cuda::scale_and_add,
      .add = cuda::add,
      .gemm = cuda::gemm,
      .rms_norm_forward = cuda::rms_norm_forward,
      .rms_norm_backward = cuda::rms_norm_backward,
      .attention_forward = cuda::attention_forward,
      .attention_backward = cuda::attention_backward,
      .gelu_forward = cuda::gelu_forward,
      .gelu_backward = cuda::gelu_backward,
      .embedding_forward = cuda::embedding_forward,
      .embedding_backward = cuda::embedding_backward,
      .cross_entropy_forward = cuda::cross_entropy_forward,
      .cross_entropy_backward = cuda::cross_entropy_backward,
      .cross_entropy_forward_backward = cuda::cross_entropy_forward_backward,
      .route_top_k = cuda::route_top_k,
      .route_top_k_backward = cuda::route_top_k_backward,
      .sort_by_expert = cuda::sort_by_expert,
      .expand_rows = cuda::expand_rows,
      .combine_rows = cuda::combine_rows,
      .combine_gates_backward = cuda::combine_gates_backward,
      .add_bias = cuda::add_bias,
      .bias_backward = cuda::bias_backward,
      .vocab_parallel_partial = cuda::vocab_parallel_partial,
      .vocab_parallel_combine = cuda::vocab_parallel_combine,
      .vocab_parallel_backward = cuda::vocab_parallel_backward,
      .adamw = cuda::adamw,
      .muon_momentum = cuda::muon_momentum,
      .muon_update = cuda::muon_update,
      .copy_segments = cuda::copy_segments,
      .orthogonalize = cuda::orthogonalize,
      .gram_product = cuda::gram_product,
      .gram_iterate = cuda::gram_iterate,
      .gram_apply = cuda::gram_apply,
      .accumulate_squares = cuda::accumulate_squares,
      .add_words = cuda::add_words,
      .clip_factor = cuda::clip_factor,
      .accumulate_sum = cuda::accumulate_sum,
      .random_normal = cuda::random_normal,
  };
  return table;
}

}  // namespace sherd
