#include <sherd/base/error.h>
#include <sherd/comm/mpi/detail/mpi_world.h>

namespace sherd {

std::vector<std::shared_ptr<Communicator>> make_mpi_world(std::span<const std::shared_ptr<Device>>,
                                                          std::span<const int>, std::shared_ptr<Store>,
                                                          const MpiOptions&) {
  throw NotCompiled(
      "this build has no MPI backend; configure with -DSHERD_MPI=ON where an MPI library (libopenmpi-dev or "
      "libmpich-dev) is installed");
}

bool has_mpi_backend() { return false; }

}  // namespace sherd
