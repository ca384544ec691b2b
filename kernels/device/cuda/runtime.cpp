#include "runtime.h"

#include <fmt/format.h>

namespace sherd::cuda {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  // Clears what is not sticky, so that a later call does not report it again.
  cudaGetLastError();
  const std::string text =
      fmt::format("{}: {}: {}", what, cudaGetErrorName(result), cudaGetErrorString(result));
  if (result == cudaErrorMemoryAllocation) throw OutOfMemory(text);
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver)
    throw CudaError(fmt::format("no CUDA device: {}; use the cpu device, or install a GPU's driver", text));
  throw CudaError(text);
}

}  // namespace sherd::cuda
