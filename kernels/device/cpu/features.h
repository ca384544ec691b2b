// Instructions of this processor that CPU kernels use. Private to kernels/device.
#pragma once

#include <string>

namespace sherd::cpu {

struct Features {
  /// Kernels run with vectors of 512 bits (AVX-512 F, BW, CD, DQ, VL).
  bool wide_vectors = false;
  /// Instructions for products of bf16 that oneDNN and kernels use: "AMX" or "AVX512-BF16"; null without such.
  const char* bf16_products = nullptr;
};

/// Returns the processor's features, found at the first call of the process. The environment's SHERD_CPU_FEATURES
/// hides those above avx2, avx512 or avx512_bf16, from oneDNN, too; ONEDNN_MAX_CPU_ISA hides oneDNN's alone.
/// @throws InvalidArgument for another value of SHERD_CPU_FEATURES. A device of these kernels calls it when it is made.
const Features& features();

/// Returns "avx2" or "avx512", with ", bf16 products ..." where there are such.
std::string describe(const Features& features);

}  // namespace sherd::cpu
