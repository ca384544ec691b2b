// What of a build and of its processor may change bits of results.
#pragma once

#include <string>

namespace sherd {

/// Returns what of the build may change bits of results: options, compiler, oneDNN, glibc.
std::string program_build();

/// Instructions of a processor that choose CPU kernels, and so bits of results.
struct ProcessorFeatures {
  /// Returns those of this processor. @throws InvalidArgument for an unknown value of SHERD_CPU_FEATURES.
  static ProcessorFeatures of_this_one();
  /// "AVX-512, bf16 products AVX512-BF16".
  std::string text;
  /// Index of the value of SHERD_CPU_FEATURES that hides nothing of them; processors of several kinds agree with the
  /// smallest.
  int level = 0;
};
/// Returns the value of SHERD_CPU_FEATURES of a level: "avx2".
const char* cpu_features_value(int level);

/// Returns "train_gpt 0.1.0 (CUDA OFF, NCCL OFF, MPI OFF; Release, cpu kernels for x86-64-v3; this processor: AVX-512, bf16
/// products AVX512-BF16)". @throws InvalidArgument for an unknown value of SHERD_CPU_FEATURES.
std::string version_text(const std::string& program);

}  // namespace sherd
