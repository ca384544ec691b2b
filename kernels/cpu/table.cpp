#include <sherd/kernels/device/cpu/dispatch.h>

#include <string_view>

namespace sherd {
namespace {

/// @throws NotSupported when the kernels were compiled for a newer processor than this one.
void check_processor() {
#ifdef SHERD_CPU_ARCH
  const std::string_view arch = SHERD_CPU_ARCH;
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if ((arch == "x86-64-v3" && !v3) || (arch == "x86-64-v4" && !(v3 && v4))) {
    throw NotSupported(
        "the cpu kernels were compiled for " SHERD_CPU_ARCH
        " and this processor lacks some of its instructions; configure with -DSHERD_CPU_ARCH=native "
        "(or =x86-64), or choose the 'reference' kernels");
  }
#endif
}

}  // namespace

const KernelTable& cpu_kernels() {
  static const KernelTable table = [] {
    check_processor();
    KernelTable t =
        reference_kernels();  // copies, reduce, sort_by_expert, accumulate_sum and random values need no more speed
    t.name = "cpu";
    t.doubles = false;
    t.fill = cpu::fill;
    t.cast = cpu::cast;
    t.scale = cpu::scale;
    t.scaled_add = cpu::scaled_add;
    t.scale_and_add = cpu::scale_and_add;
    t.add = cpu::add;
    t.multiply = cpu::multiply;
    t.gemm = cpu::gemm;
    t.rms_norm_forward = cpu::rms_norm_forward;
    t.rms_norm_backward = cpu::rms_norm_backward;
    t.layer_norm_forward = cpu::layer_norm_forward;
    t.layer_norm_backward = cpu::layer_norm_backward;
    t.attention_forward = cpu::attention_forward;
    t.attention_backward = cpu::attention_backward;
    t.cached_attention = cpu::cached_attention;
    t.rope = cpu::rope;
    t.gelu_forward = cpu::gelu_forward;
    t.gelu_backward = cpu::gelu_backward;
    t.embedding_forward = cpu::embedding_forward;
    t.embedding_backward = cpu::embedding_backward;
    t.cross_entropy_forward = cpu::cross_entropy_forward;
    t.cross_entropy_backward = cpu::cross_entropy_backward;
    t.cross_entropy_forward_backward = cpu::cross_entropy_forward_backward;
    t.route_top_k = cpu::route_top_k;
    t.route_top_k_backward = cpu::route_top_k_backward;
    t.expand_rows = cpu::expand_rows;
    t.combine_rows = cpu::combine_rows;
    t.combine_gates_backward = cpu::combine_gates_backward;
    t.add_bias = cpu::add_bias;
    t.bias_backward = cpu::bias_backward;
    t.activation_forward = cpu::activation_forward;
    t.activation_backward = cpu::activation_backward;
    t.swiglu_forward = cpu::swiglu_forward;
    t.swiglu_backward = cpu::swiglu_backward;
    t.softmax_forward = cpu::softmax_forward;
    t.softmax_backward = cpu::softmax_backward;
    t.dropout = cpu::dropout;
    t.vocab_parallel_partial = cpu::vocab_parallel_partial;
    t.vocab_parallel_combine = cpu::vocab_parallel_combine;
    t.vocab_parallel_backward = cpu::vocab_parallel_backward;
    t.adamw = cpu::adamw;
    t.muon_momentum = cpu::muon_momentum;
    t.muon_update = cpu::muon_update;
    t.copy_segments = cpu::copy_segments;
    t.orthogonalize = cpu::orthogonalize;
    t.gram_product = cpu::gram_product;
    t.gram_iterate = cpu::gram_iterate;
    t.gram_apply = cpu::gram_apply;
    t.accumulate_squares = cpu::accumulate_squares;
    t.accumulate_magnitudes = cpu::accumulate_magnitudes;
    return t;
  }();
  return table;
}

}  // namespace sherd
