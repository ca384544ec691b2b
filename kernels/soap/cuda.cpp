#include <sherd/kernels/soap/soap.h>

namespace sherd {

// Not written yet: Device::kernels<SoapKernels>() of a CUDA device throws NotSupported.
const SoapKernels* SoapKernels::cuda() { return nullptr; }

}  // namespace sherd
