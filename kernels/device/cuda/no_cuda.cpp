// Stub of the CUDA backend, for builds without CUDA.
#include <sherd/kernels/device/device.h>

#include <sherd/base/error.h>
#include <sherd/kernels/device/hardware.h>

namespace sherd {
namespace {

[[noreturn]] void refuse() {
  throw NotCompiled(
      "this build of sherd has no CUDA; configure with -DSHERD_CUDA=ON (nvcc must be on the PATH) and build "
      "again, or "
      "use the cpu device");
}

}  // namespace

std::shared_ptr<Device> make_cuda_device(const DeviceOptions&) { refuse(); }
int cuda_device_count() { refuse(); }
std::string cuda_pci_address(int) { return ""; }
Hardware hardware_of(const Device&) { return {}; }

}  // namespace sherd
