#include <sherd/base/error.h>
#include <sherd/comm/nccl/detail/nccl_world.h>

namespace sherd {
namespace {

[[noreturn]] void not_compiled() {
  throw NotCompiled(
      "this build has no NCCL backend; configure with -DSHERD_CUDA=ON -DSHERD_NCCL=ON where the CUDA toolkit "
      "and NCCL (nccl.h, libnccl) are installed");
}

}  // namespace

std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device>, std::shared_ptr<Store>, int, int,
                                              const NcclOptions&) {
  not_compiled();
}
std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device>, const LaunchEnvironment&,
                                              const NcclOptions&) {
  not_compiled();
}
std::vector<std::shared_ptr<Communicator>> make_nccl_world(std::span<const std::shared_ptr<Device>>,
                                                           const NcclOptions&) {
  not_compiled();
}

void set_nccl_environment(const NcclOptions&) {}

bool has_nccl_backend() { return false; }

}  // namespace sherd
