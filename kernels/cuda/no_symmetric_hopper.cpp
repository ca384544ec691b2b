// Stub of symmetric_hopper.cu where no nvcc compiles: in the emulation on a host.
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/orthogonalize/cuda/symmetric.h>

namespace sherd::cuda {

bool symmetric_hopper_available(const Chip&, Factor, Factor, const Terms&, const Matrices&) { return false; }

void symmetric_hopper(ExecutionContext&, Factor, Factor, const Terms&, const Matrices&, int) {
  throw NotSupported("symmetric_hopper: not compiled here; ask symmetric_hopper_available() first");
}

}  // namespace sherd::cuda
