#include <sherd/kernels/device/cpu/narrow.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <sherd/kernels/device/cpu/features.h>

namespace sherd::cpu {
namespace {

#ifdef __x86_64__
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] int64_t narrow_wide(bf16* to,
                                                                                     const float* from,
                                                                                     int64_t n) {
  constexpr int kSubnormal = 0x20;  // the instruction takes and makes zeros for these
  const int64_t whole = n / 32 * 32;
  for (int64_t i = 0; i < whole; i += 32) {
    const __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
    if (_mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal)) {
      for (int64_t j = i; j < i + 32; ++j) store(to[j], from[j]);
    } else {
      const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      __builtin_memcpy(to + i, &both, sizeof both);
    }
  }
  return whole;
}
#endif

}  // namespace

int64_t narrow_by_instructions([[maybe_unused]] bf16* to, [[maybe_unused]] const float* from,
                               [[maybe_unused]] int64_t n) {
#ifdef __x86_64__
  if (features().bf16_products != nullptr) return narrow_wide(to, from, n);
#endif
  return 0;
}

}  // namespace sherd::cpu
