#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>

namespace sherd {

Job mpi_bootstrap(std::chrono::milliseconds, const StoreOptions&) {
  throw NotCompiled(
      "this build cannot start by MPI; install an MPI library and configure with -DSHERD_MPI=ON, or use "
      "torchrun's variables (from_environment)");
}

}  // namespace sherd
