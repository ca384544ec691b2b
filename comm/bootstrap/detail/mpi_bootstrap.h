// Bootstrap over MPI, for processes that mpirun or srun started.
#pragma once

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// Rank, size, local rank and share of the host's cores from MPI_COMM_WORLD, and a store on a free port of
/// rank 0's host, whose address MPI sends to the others; no environment variables are needed. The address is
/// 127.0.0.1 where all ranks share one host, else rank 0's host name; set SHERD_STORE_HOST where that name
/// does not resolve. Initialises MPI unless it is initialised (initialize_mpi()). Call it on one thread,
/// while no world over MPI exists unless MPI allows calls by several threads. NCCL's ids, aborts and all else
/// then pass through the store. Every process calls.
///
/// Rank 0 draws the job's secret and MPI hands it on, whatever the environment says: other processes cannot
/// join the store. It listens on connect_store()'s addresses.
/// @throws CommError; NotCompiled without MPI.
Job mpi_bootstrap(std::chrono::milliseconds timeout, const StoreOptions& options = {});

}  // namespace sherd
