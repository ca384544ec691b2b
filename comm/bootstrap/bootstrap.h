// Bootstrap of a job: ranks, addresses and the common store of its processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <sherd/comm/bootstrap/store.h>

namespace sherd {

/// Where the store of a job without a secret listens.
enum class WithoutSecret {
  /// Where the others can reach it, as with a secret. Whoever else can reach it can read and write the job's
  /// store, and so end the job; on several hosts a line of the log warns of that.
  everywhere,
  /// On loopback alone; a job on several hosts is refused.
  loopback
};

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
  /// What all processes of the job know and nobody else does: without it nobody gets into the store. Empty:
  /// there is none. It is a key, not a password: 32 random bytes are good, a word can be guessed by who hears
  /// proofs of it.
  std::string secret;
  WithoutSecret without_secret = WithoutSecret::everywhere;
};

/// Takes a line of text, without its end. The store's thread and the caller's may call it at once.
using StoreLog = std::function<void(const std::string&)>;

struct StoreOptions {
  /// How long rank 0's store waits for the others to close theirs.
  std::chrono::milliseconds linger = std::chrono::seconds(10);
  /// What rank 0's store has to tell: that it is open to everybody, and which connections it dropped. Empty:
  /// stderr, with the library's name before it.
  StoreLog log = {};
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
/// - torchrun: RANK, WORLD_SIZE, LOCAL_RANK (0 when missing: one process a host, as Kubernetes' operators
/// do);
/// - Open MPI: OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK;
/// - MPICH and Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID;
/// - Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, inside a step of srun's only: the shells of salloc and
///   batch scripts have them, too, and are one process. (Last, as the variables of a step around mpirun stay
///   in place; but before PMI's without MPI_LOCALRANKID, which srun may set.)
/// More than one process also needs MASTER_ADDR and MASTER_PORT. The store listens on MASTER_PORT + 1, for
/// torchrun's own store has MASTER_PORT; SHERD_STORE_PORT names another port, and MASTER_PORT may then be
/// missing. Where the launcher says that all are on one host, both may be missing: 127.0.0.1, and a port that
/// follows from the job's name.
///
/// More than one process also reads the job's secret, from SHERD_JOB_SECRET or from the file that
/// SHERD_JOB_SECRET_FILE names, which nobody else may read; and SHERD_STORE_WITHOUT_SECRET, "everywhere" (as
/// when it is not set) or "loopback".
/// @throws InvalidArgument naming everything that is missing or wrong.
LaunchEnvironment from_environment(const EnvironmentLookup& get = {});

/// The job's store: rank 0 listens on store_port, the others connect to it, trying again until `timeout`.
///
/// Where: on one host, 127.0.0.1 (::1 where that is store_host) and nothing else, whatever store_host is. On
/// several hosts store_host, when that is an address of rank 0's host; every interface, when it is a name,
/// which may mean another address on other hosts, or an address that leads to rank 0's host by way of
/// another.
///
/// Who: with a secret both sides of a connection prove that they know it (HMAC-SHA256 over numbers that both
/// have just drawn; the secret itself is never sent) before anything else is said. That keeps out who can
/// reach the port. What follows is neither encrypted nor signed: it does not keep out who can change the
/// packets of the network between the hosts. Without a secret everybody is believed, see WithoutSecret. Who
/// does not show within 10 s that it is a rank of the job, or sends anything else, is dropped, and the log
/// has a line with its address and the reason; of very many in a short time one line per address.
///
/// When a process other than rank 0 ends without having closed its store, the store announces it (see
/// AbortNotice). Rank 0's store waits for the others to close theirs, for at most `linger`, before it goes.
/// A request that gets no answer for `timeout` fails.
/// @throws CommError: the port is taken, nobody answers, what answers is another job or another program, or
/// the ranks' secrets differ, which the message says; InvalidArgument: a job on several hosts without a
/// secret, with WithoutSecret::loopback.
std::shared_ptr<Store> connect_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout,
                                     const StoreOptions& options = {});

}  // namespace sherd
