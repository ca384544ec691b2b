// PTX of compute capability 9.0, one function per instruction; written from the PTX ISA's description of
// wgmma, mbarrier and cp.async.bulk.tensor. For a host compiler, their twins in tests/cuda_host. Private to
// symmetric_hopper.cu.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#ifndef __CUDACC__
#include <cuda_host/hopper.h>
#else
#include "wgmma.h"

namespace sherd::cuda::hopper {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarrier: phases that end when all arrivals and announced bytes have come ---

__device__ inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
/// Makes initialised barriers visible to the copy engine.
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Returns when the phase of this parity is over.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Barrier `id` (1..15) of `threads` threads.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- copies from global to shared memory ---

/// The box of `map` at (x, y, z); elements outside the tensor become zeros. Its bytes count for `barrier`.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- wgmma ---

/// Before the first product, and wherever registers that the products use were touched.
__device__ inline void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Returns when at most `Pending` committed groups are unfinished.
template <int Pending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving accumulators across the asynchronous products.
template <int kCount>
__device__ inline void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// --- registers of the warps of a block ---

/// Keeps the compiler from computing what depends on `x` any earlier than here, which would take registers
/// that the products need.
__device__ inline void begin_with(int& x) { asm volatile("" : "+r"(x)); }

template <int Registers>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace sherd::cuda::hopper

#endif

namespace sherd::cuda::hopper {

/// Descriptor of a tile whose rows are 128 bytes, contiguous along the summed dimension, in 128-byte swizzle:
/// bits 0-13 address / 16; 16-29 leading offset / 16, not used by this layout (1); 32-45 offset between
/// groups of 8 rows / 16 (1024 bytes); 62-63 the swizzle (1 = 128 bytes). The tile begins at a multiple of
/// 1024 bytes; 16 elements further along the rows are 32 bytes, 2 in the address field.
__device__ inline uint64_t tile_descriptor(const void* tile) {
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{1024 / 16} << 32 | uint64_t{1} << 62;
}

}  // namespace sherd::cuda::hopper
