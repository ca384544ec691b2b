// Philox4x32 on the device, as kernels/random/random.h has it for the host. Private to CUDA kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/cuda/launch.h>

namespace sherd::cuda {

struct Words {
  uint32_t v[4];
};

template <int kRounds = 10>
__device__ inline Words philox(uint64_t counter, uint64_t key, uint32_t third = 0, uint32_t fourth = 0) {
  Words c{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), third, fourth}};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.v[0], b = uint64_t{0xCD9E8D57u} * c.v[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.v[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.v[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace sherd::cuda
