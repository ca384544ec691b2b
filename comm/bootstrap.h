// How the processes of a job learn who they are and reach a common store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <sherd/comm/store.h>

namespace sherd {

/// What the program that started this process says about it.
struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  /// Number of this process on its host: the GPU it takes.
  int local_rank = 0;
  /// Where rank 0's store listens; not used when size is 1.
  std::string store_host;
  int store_port = 0;
};

/// Reads RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them; without any of those, Open MPI's
/// OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK; without those, Slurm's SLURM_PROCID, SLURM_NTASKS and
/// SLURM_LOCALID (last, as mpirun inside a batch job leaves the batch step's Slurm variables in place).
/// More than one process also needs MASTER_ADDR and MASTER_PORT. The store listens on MASTER_PORT + 1, for
/// torchrun's own store has MASTER_PORT; SHERD_STORE_PORT names another port, and MASTER_PORT may then be
/// missing.
/// `get` is ::getenv by default. @throws InvalidArgument naming everything that is missing or wrong.
LaunchEnvironment from_environment(const std::function<const char*(const char*)>& get = {});

/// The job's store: rank 0 listens on store_host:store_port (a name that is neither an address nor
/// "localhost" is listened for on every interface), the others connect, trying again until `timeout`.
///
/// When a process other than rank 0 ends without having closed its store, the store announces it (see
/// AbortNotice). Rank 0's store waits for the others to close theirs, for at most `linger`, before it goes.
/// There is no authentication: whoever reaches the port can end the job. A request that gets no answer for
/// `timeout` fails.
/// @throws CommError: the port is taken, nobody answers, or what answers is another job or another program.
std::shared_ptr<Store> connect_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds linger = std::chrono::seconds(10));

}  // namespace sherd
