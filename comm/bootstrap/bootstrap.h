// How the processes of a job learn who they are and reach a common store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <sherd/comm/bootstrap/store.h>

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
  /// All processes are known to be on this host: the store need not be reached from others.
  bool one_host = false;
  /// The launcher's name of the job, so that ranks of another one are refused; empty: any.
  std::string job;
  /// Cores of the host that are this process's share, where that is known (mpi_bootstrap()); else 0.
  int cores = 0;
};

/// Who this process is, and the store that it shares with the others.
struct Job {
  LaunchEnvironment environment = {};
  std::shared_ptr<Store> store = {};
};

/// Looks up a variable, null when it is not there; empty: ::getenv.
using EnvironmentLookup = std::function<const char*(const char*)>;

/// Whether the environment is that of a process of a job, as far as from_environment knows.
struct JobHint {
  bool present = false;
  /// Which variable says of how many processes, and how many; 0 when it does not say.
  std::string variable;
  int processes = 0;
};
JobHint job_in_environment(const EnvironmentLookup& get = {});

/// Reads the variables of the first of these launchers whose rank or size is set and not empty:
/// - torchrun: RANK, WORLD_SIZE, LOCAL_RANK (0 when missing: one process a host, as with Kubernetes' operators);
/// - Open MPI: OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK;
/// - MPICH and Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID;
/// - Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, inside a step of srun's only: the shells of salloc and
///   batch scripts have them, too, and are one process. (Last, as the variables of a step around mpirun stay
///   in place; but before PMI's without MPI_LOCALRANKID, which srun may set.)
/// More than one process also needs MASTER_ADDR and MASTER_PORT. The store listens on MASTER_PORT + 1, for
/// torchrun's own store has MASTER_PORT; SHERD_STORE_PORT names another port, and MASTER_PORT may then be
/// missing. Where the launcher says that all are on one host, both may be missing: 127.0.0.1, and a port that
/// follows from the job's name.
/// @throws InvalidArgument naming everything that is missing or wrong.
LaunchEnvironment from_environment(const EnvironmentLookup& get = {});

/// The job's store: rank 0 listens on store_port of every interface (of store_host alone for a job on one
/// host, unless that is a name or no address of this host's), the others connect to store_host, trying again
/// until `timeout`.
///
/// When a process other than rank 0 ends without having closed its store, the store announces it (see
/// AbortNotice). Rank 0's store waits for the others to close theirs, for at most `linger`, before it goes.
/// There is no authentication: whoever reaches the port can end the job. A request that gets no answer for
/// `timeout` fails.
/// @throws CommError: the port is taken, nobody answers, or what answers is another job or another program.
std::shared_ptr<Store> connect_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds linger = std::chrono::seconds(10));

}  // namespace sherd
