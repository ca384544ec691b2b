// Worlds over any table of NCCL's functions. Private to comm/nccl; see nccl_world.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/core/communicator.h>
#include <sherd/comm/nccl/detail/api.h>
#include <sherd/comm/nccl/nccl_options.h>

namespace sherd::nccl {

/// See set_nccl_environment().
void set_environment(const NcclOptions& options);
/// `api` outlives the world.
std::shared_ptr<Communicator> make_world(const NcclApi& api, std::shared_ptr<Device> device,
                                         std::shared_ptr<Store> store, int rank, int size,
                                         const NcclOptions& options);
std::vector<std::shared_ptr<Communicator>> make_world(const NcclApi& api,
                                                      std::span<const std::shared_ptr<Device>> devices,
                                                      const NcclOptions& options);

}  // namespace sherd::nccl
