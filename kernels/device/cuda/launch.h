// Device code and kernel launches of the CUDA kernels.
//
// With mma.h, hopper.h and thrust.h the only file there that distinguishes nvcc from a host compiler:
// compiled as plain C++, the same kernels run under the emulation in tests/cuda_host, one thread block after
// another, which is how they are tested on machines without a GPU.
#pragma once

#include <cstddef>
#include <string>
#include <tuple>

#include <sherd/kernels/device/stream.h>

#include "runtime.h"

#ifdef __CUDACC__
/// Dynamic shared memory of a kernel as `type name[]`, 128-byte aligned.
#define SHERD_DYNAMIC_SHARED(type, name)                         \
  extern __shared__ __align__(128) unsigned char sherd_shared[]; \
  type* const name = reinterpret_cast<type*>(sherd_shared)
#else
#include <cuda_host/emulation.h>
#endif

namespace sherd::cuda {

struct Grid {
  dim3 blocks{1};
  dim3 threads{1};
  size_t shared_bytes = 0;  // dynamic
};

/// Dynamic shared memory that needs no leave: without it, static and dynamic may have 48 KiB together.
inline constexpr size_t kSharedForAnyone = 32 * 1024;

/// One thread per element, at most `most` blocks of 256: kernels stride over the rest.
inline Grid grid_for(int64_t count, int64_t most = 132 * 16) {
  const int64_t blocks = (count + 255) / 256;
  return {dim3(static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks)), dim3(256)};
}

/// Starts `kernel` on the context's stream; arguments are copied. A grid without blocks starts nothing.
/// @throws CudaError naming `what`.
template <class... P, class... A>
void launch(ExecutionContext& context, const char* what, void (*kernel)(P...), const Grid& grid,
            A&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared_bytes > kSharedForAnyone) {
    const int64_t limit = dynamic_shared_limit(context, what, reinterpret_cast<const void*>(kernel));
    if (static_cast<int64_t>(grid.shared_bytes) > limit)
      throw CudaError(std::string(what) + ": a block asks for " + std::to_string(grid.shared_bytes) +
                      " bytes of dynamic shared memory; this kernel can have " + std::to_string(limit));
  }
#ifdef __CUDACC__
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream_of(context)>>>(static_cast<P>(arguments)...);
  check(cudaGetLastError(), what);
#else
  check(cuda_host::launch(stream_of(context), what, reinterpret_cast<const void*>(kernel), grid.blocks,
                          grid.threads, grid.shared_bytes,
                          [kernel, copies = std::tuple<P...>(static_cast<P>(arguments)...)] {
                            std::apply(kernel, copies);
                          }),
        what);
#endif
}

}  // namespace sherd::cuda
