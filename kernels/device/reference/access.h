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

/// Element i += v, one addition in its dtype, f32 or f64.
inline void accumulate(Ref r, int64_t i, double v) {
  if (r.dtype == DType::f64)
    r.as<double>()[i] += v;
  else
    r.as<float>()[i] += static_cast<float>(v);
}

Kernel<&KernelTable::fill> fill;
Kernel<&KernelTable::cast> cast;
Kernel<&KernelTable::scale> scale;
Kernel<&KernelTable::scale_by> scale_by;
Kernel<&KernelTable::clamp> clamp;
Kernel<&KernelTable::scaled_add> scaled_add;
Kernel<&KernelTable::scale_and_add> scale_and_add;
Kernel<&KernelTable::add> add;
Kernel<&KernelTable::multiply> multiply;
Kernel<&KernelTable::copy> copy;
Kernel<&KernelTable::strided_copy> strided_copy;
Kernel<&KernelTable::reduce> reduce;
Kernel<&KernelTable::accumulate_sum> accumulate_sum;
Kernel<&KernelTable::gemm> gemm;
Kernel<&KernelTable::rms_norm_forward> rms_norm_forward;
Kernel<&KernelTable::rms_norm_backward> rms_norm_backward;
Kernel<&KernelTable::layer_norm_forward> layer_norm_forward;
Kernel<&KernelTable::layer_norm_backward> layer_norm_backward;
Kernel<&KernelTable::attention_forward> attention_forward;
Kernel<&KernelTable::attention_backward> attention_backward;
Kernel<&KernelTable::cached_attention> cached_attention;
Kernel<&KernelTable::rope> rope;
Kernel<&KernelTable::gelu_forward> gelu_forward;
Kernel<&KernelTable::gelu_backward> gelu_backward;
Kernel<&KernelTable::add_bias> add_bias;
Kernel<&KernelTable::bias_backward> bias_backward;
Kernel<&KernelTable::activation_forward> activation_forward;
Kernel<&KernelTable::activation_backward> activation_backward;
Kernel<&KernelTable::swiglu_forward> swiglu_forward;
Kernel<&KernelTable::swiglu_backward> swiglu_backward;
Kernel<&KernelTable::softmax_forward> softmax_forward;
Kernel<&KernelTable::softmax_backward> softmax_backward;
Kernel<&KernelTable::dropout> dropout;
Kernel<&KernelTable::check_indices> check_indices;
Kernel<&KernelTable::embedding_forward> embedding_forward;
Kernel<&KernelTable::embedding_backward> embedding_backward;
Kernel<&KernelTable::cross_entropy_forward> cross_entropy_forward;
Kernel<&KernelTable::cross_entropy_backward> cross_entropy_backward;
Kernel<&KernelTable::cross_entropy_forward_backward> cross_entropy_forward_backward;
Kernel<&KernelTable::vocab_parallel_partial> vocab_parallel_partial;
Kernel<&KernelTable::vocab_parallel_combine> vocab_parallel_combine;
Kernel<&KernelTable::vocab_parallel_backward> vocab_parallel_backward;
Kernel<&KernelTable::route_top_k> route_top_k;
Kernel<&KernelTable::route_top_k_backward> route_top_k_backward;
Kernel<&KernelTable::sort_by_expert> sort_by_expert;
Kernel<&KernelTable::expand_rows> expand_rows;
Kernel<&KernelTable::combine_rows> combine_rows;
Kernel<&KernelTable::combine_gates_backward> combine_gates_backward;
Kernel<&KernelTable::adamw_count> adamw_count;
Kernel<&KernelTable::adamw> adamw;
Kernel<&KernelTable::muon_momentum> muon_momentum;
Kernel<&KernelTable::muon_update> muon_update;
Kernel<&KernelTable::copy_segments> copy_segments;
Kernel<&KernelTable::orthogonalize> orthogonalize;
Kernel<&KernelTable::gram_product> gram_product;
Kernel<&KernelTable::gram_iterate> gram_iterate;
Kernel<&KernelTable::gram_apply> gram_apply;
Kernel<&KernelTable::accumulate_squares> accumulate_squares;
Kernel<&KernelTable::accumulate_magnitudes> accumulate_magnitudes;
Kernel<&KernelTable::largest_magnitude> largest_magnitude;
Kernel<&KernelTable::add_words> add_words;
Kernel<&KernelTable::clip_factor> clip_factor;
Kernel<&KernelTable::qk_clip_factors> qk_clip_factors;
Kernel<&KernelTable::scale_heads> scale_heads;
Kernel<&KernelTable::row_records> row_records;
Kernel<&KernelTable::row_scales> row_scales;
Kernel<&KernelTable::scale_rows> scale_rows;
Kernel<&KernelTable::random_uniform> random_uniform;
Kernel<&KernelTable::random_truncated_normal> random_truncated_normal;
Kernel<&KernelTable::random_normal> random_normal;

}  // namespace sherd::reference
