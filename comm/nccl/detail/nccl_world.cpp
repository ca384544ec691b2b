#include <sherd/comm/nccl/detail/nccl_world.h>

#include <sherd/comm/nccl/detail/nccl_communicator.h>

namespace sherd {

std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device> device, std::shared_ptr<Store> store,
                                              int rank, int size, const NcclOptions& options) {
  return nccl::make_world(nccl::nccl_api(), std::move(device), std::move(store), rank, size, options);
}

std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device> device,
                                              const LaunchEnvironment& environment,
                                              const NcclOptions& options) {
  return make_nccl_world(std::move(device), connect_store(environment, options.timeout), environment.rank,
                         environment.size, options);
}

std::vector<std::shared_ptr<Communicator>> make_nccl_world(std::span<const std::shared_ptr<Device>> devices,
                                                           const NcclOptions& options) {
  return nccl::make_world(nccl::nccl_api(), devices, options);
}

void set_nccl_environment(const NcclOptions& options) { nccl::set_environment(options); }

bool has_nccl_backend() { return true; }

}  // namespace sherd
