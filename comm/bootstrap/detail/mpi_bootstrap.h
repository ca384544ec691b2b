// Bootstrap over MPI, for processes that mpirun or srun started.
#pragma once

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// Rank, size, local rank and share of the host's cores from MPI_COMM_WORLD, and a store on a free port of
/// rank 0's host, whose address MPI tells the others; no environment variables are needed. The address is
/// 127.0.0.1 where all are on one host, else rank 0's host name; SHERD_STORE_HOST names another where that
/// does not lead there. Initialises MPI when nobody has (initialize_mpi()); call it on one thread, while no
/// world over MPI is there unless MPI lets several threads call it. NCCL's ids, aborts and all else then go
/// through the store. Every process calls.
///
/// The job's secret is drawn by rank 0 and handed on by MPI, whatever the environment says: nobody else gets
/// into the store. It listens where connect_store()'s would.
/// @throws CommError; NotCompiled without MPI.
Job mpi_bootstrap(std::chrono::milliseconds timeout, const StoreOptions& options = {});

}  // namespace sherd
