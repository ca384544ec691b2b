#include <sherd/kernels/device/cpu/bf16_products.h>

#include <dnnl.h>

namespace sherd::cpu {

const char* bf16_products() {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const auto has = [&](unsigned wanted) { return (isa & wanted) == wanted; };
  if (has(dnnl_cpu_isa_avx512_core_amx)) return "AMX";
  return has(dnnl_cpu_isa_avx512_core_bf16) ? "AVX512-BF16" : nullptr;
}

}  // namespace sherd::cpu
