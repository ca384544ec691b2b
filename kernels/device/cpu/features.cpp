#include <sherd/kernels/device/cpu/features.h>

#include <dnnl.h>

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/kernels/device/build.h>

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

namespace sherd {

ProcessorFeatures ProcessorFeatures::of_this_one() {
  using cpu::Level;
  const cpu::Features& f = cpu::features();
  ProcessorFeatures found{.text = cpu::describe(f)};
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const auto has = [&](unsigned wanted) { return (isa & wanted) == wanted; };
  const char* const library = has(dnnl_cpu_isa_avx512_core) ? "AVX-512"
                              : has(dnnl_cpu_isa_avx2)      ? "AVX2"
                                                            : "SSE4.1";
  if (!found.text.starts_with(library))
    found.text += fmt::format(", oneDNN with {}", library);  // ONEDNN_MAX_CPU_ISA
  const std::string_view products = f.bf16_products == nullptr ? "" : f.bf16_products;
  found.level = static_cast<int>(products == "AMX"   ? Level::amx
                                 : !products.empty() ? Level::avx512_bf16
                                 : f.wide_vectors    ? Level::avx512
                                                     : Level::avx2);
  return found;
}

const char* cpu_features_value(int level) {
  return cpu::kLevels.checked_name("SHERD_CPU_FEATURES", static_cast<cpu::Level>(level));
}

}  // namespace sherd
