#include "reference.h"

namespace sherd {

const KernelTable& reference_kernels() {
  namespace k = reference;
  static constexpr KernelTable table{
      .name = "reference",
      .fill = k::fill,
      .cast = k::cast,
      .scale = k::scale,
      .scale_by = k::scale_by,
      .scaled_add = k::scaled_add,
      .scale_and_add = k::scale_and_add,
      .add = k::add,
      .copy = k::copy,
      .strided_copy = k::strided_copy,
      .reduce = k::reduce,
      .accumulate_sum = k::accumulate_sum,
      .gemm = k::gemm,
      .rms_norm_forward = k::rms_norm_forward,
      .rms_norm_backward = k::rms_norm_backward,
      .attention_forward = k::attention_forward,
      .attention_backward = k::attention_backward,
      .gelu_forward = k::gelu_forward,
      .gelu_backward = k::gelu_backward,
      .add_bias = k::add_bias,
      .bias_backward = k::bias_backward,
      .check_indices = k::check_indices,
      .embedding_forward = k::embedding_forward,
      .embedding_backward = k::embedding_backward,
      .cross_entropy_forward = k::cross_entropy_forward,
      .cross_entropy_backward = k::cross_entropy_backward,
      .cross_entropy_forward_backward = k::cross_entropy_forward_backward,
      .vocab_parallel_partial = k::vocab_parallel_partial,
      .vocab_parallel_combine = k::vocab_parallel_combine,
      .vocab_parallel_backward = k::vocab_parallel_backward,
      .route_top_k = k::route_top_k,
      .route_top_k_backward = k::route_top_k_backward,
      .sort_by_expert = k::sort_by_expert,
      .expand_rows = k::expand_rows,
      .combine_rows = k::combine_rows,
      .combine_gates_backward = k::combine_gates_backward,
      .adamw_count = k::adamw_count,
      .adamw = k::adamw,
      .muon_momentum = k::muon_momentum,
      .muon_update = k::muon_update,
      .copy_segments = k::copy_segments,
      .orthogonalize = k::orthogonalize,
      .gram_product = k::gram_product,
      .gram_iterate = k::gram_iterate,
      .gram_apply = k::gram_apply,
      .accumulate_squares = k::accumulate_squares,
      .add_words = k::add_words,
      .clip_factor = k::clip_factor,
      .random_uniform = k::random_uniform,
      .random_truncated_normal = k::random_truncated_normal,
      .random_normal = k::random_normal,
  };
  return table;
}

}  // namespace sherd
