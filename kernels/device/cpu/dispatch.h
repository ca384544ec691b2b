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

Kernel<&KernelTable::fill> fill;
Kernel<&KernelTable::cast> cast;
Kernel<&KernelTable::scale> scale;
Kernel<&KernelTable::scaled_add> scaled_add;
Kernel<&KernelTable::scale_and_add> scale_and_add;
Kernel<&KernelTable::add> add;
Kernel<&KernelTable::multiply> multiply;
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
Kernel<&KernelTable::expand_rows> expand_rows;
Kernel<&KernelTable::combine_rows> combine_rows;
Kernel<&KernelTable::combine_gates_backward> combine_gates_backward;
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

}  // namespace sherd::cpu
