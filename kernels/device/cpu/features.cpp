#include <sherd/kernels/device/cpu/features.h>

#include <dnnl.h>

#include <cstdlib>

#include <sherd/kernels/device/enum_table.h>
#include <sherd/kernels/device/error.h>

namespace sherd::cpu {
namespace {

enum class Level { avx2, avx512, avx512_bf16, amx };
constexpr EnumTable<Level, 4> kLevels{"avx2", "avx512", "avx512_bf16", "amx"};

bool has_wide_vectors() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

/// Hides what is above `level` from oneDNN. @throws NotSupported after oneDNN's first primitive of the process.
void limit_library(Level level) {
  constexpr dnnl_cpu_isa_t kIsas[] = {dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core,
                                      dnnl_cpu_isa_avx512_core_bf16};
  if (level == Level::amx || dnnl_set_max_cpu_isa(kIsas[static_cast<size_t>(level)]) == dnnl_success) return;
  throw NotSupported(
      "SHERD_CPU_FEATURES cannot limit oneDNN, which this process has used already; set ONEDNN_MAX_CPU_ISA, "
      "too");
}

Features find() {
  Level level = Level::amx;
  if (const char* wanted = std::getenv("SHERD_CPU_FEATURES")) {
    level = kLevels.parse("SHERD_CPU_FEATURES", wanted);
    limit_library(level);
  }
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const auto has = [&](unsigned wanted) { return (isa & wanted) == wanted; };
  Features f;
  f.wide_vectors = level >= Level::avx512 && has_wide_vectors();
  if (has(dnnl_cpu_isa_avx512_core_amx)) {
    f.bf16_products = "AMX";
  } else if (has(dnnl_cpu_isa_avx512_core_bf16)) {
    f.bf16_products = "AVX512-BF16";
  }
  return f;
}

}  // namespace

const Features& features() {
  static const Features found = find();
  return found;
}

std::string describe(const Features& features) {
  std::string text = features.wide_vectors ? "AVX-512" : "AVX2";
  if (features.bf16_products != nullptr) text += std::string(", bf16 products ") + features.bf16_products;
  return text;
}

}  // namespace sherd::cpu
