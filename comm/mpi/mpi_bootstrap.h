// The processes of a job find each other by MPI, where mpirun or srun started them.
#pragma once

#include <sherd/comm/bootstrap.h>

namespace sherd {

struct MpiLaunch {
  LaunchEnvironment environment;
  std::shared_ptr<Store> store;
};

/// Rank, size and local rank from MPI_COMM_WORLD, and a store on a free port of rank 0's host, whose address
/// MPI tells the others; no environment variables are needed. SHERD_STORE_HOST names rank 0's address where
/// its host name does not lead there. Initialises MPI when nobody has (MPI_THREAD_FUNNELED, finalised when
/// the process exits); call it on one thread. NCCL's ids, aborts and all else then go through the store: no
/// collective runs over MPI. Every process calls. @throws CommError; NotCompiled without MPI.
MpiLaunch mpi_bootstrap(std::chrono::milliseconds timeout);

}  // namespace sherd
