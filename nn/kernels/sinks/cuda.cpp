#include <sherd/nn/kernels/sinks/sinks.h>

namespace sherd {

// No CUDA kernels: programs refuse models with sinks on CUDA devices.
const SinksKernels* SinksKernels::cuda() { return nullptr; }

}  // namespace sherd
