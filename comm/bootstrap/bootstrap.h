// Bootstrap of a job: ranks, addresses and the common store of its processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <sherd/comm/bootstrap/store.h>

namespace sherd {

/// Listening address of the store of a job without a secret.
enum class WithoutSecret {
  /// An address that the other ranks can reach, as with a secret. Any other host that reaches it can read and
  /// write the job's store, and so end the job; on several hosts the log contains a warning.
  everywhere,
  /// Loopback alone; a job on several hosts is refused.
  loopback
};

/// Information about this process from the program that started it.
struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  /// Index of this process on its host: the GPU it uses.
  int local_rank = 0;
  /// Address of rank 0's store; unused when size is 1.
  std::string store_host;
  int store_port = 0;
  /// All processes are on this host: other hosts need no access to the store.
  bool one_host = false;
  /// Name of the job from the launcher, so that ranks of another job are refused; empty: any.
  std::string job;
  /// Cores of the host that are this process's share, if known (mpi_bootstrap()); else 0.
  int cores = 0;
  /// Secret that only the processes of the job know. The store accepts no connection without it. Empty: no
  /// secret. It is a key, not a password: use 32 random bytes. An eavesdropper on proofs can guess a word.
  std::string secret;
  WithoutSecret without_secret = WithoutSecret::everywhere;
};

/// Receives a line of text, without its end. The store's thread and the caller's may call it concurrently.
using StoreLog = std::function<void(const std::string&)>;

struct StoreOptions {
  /// Time that rank 0's store waits for the other ranks to close theirs.
  std::chrono::milliseconds linger = std::chrono::seconds(10);
  /// Log of rank 0's store: that it is open without a secret, and the connections it dropped. Empty: stderr,
  /// prefixed with the library's name.
  StoreLog log = {};
};

/// Identity of this process, and the store that it shares with the others.
struct Job {
  LaunchEnvironment environment = {};
  std::shared_ptr<Store> store = {};
};

/// Looks up a variable, null when it is absent. An empty function: `getenv`.
using EnvironmentLookup = std::function<const char*(const char*)>;

/// Hints that this process belongs to a job, from the environment, as far as from_environment can detect.
struct JobHint {
  bool present = false;
  /// Variable that gives the number of processes, and the number; 0 when unknown.
  std::string variable;
  int processes = 0;
};
JobHint job_in_environment(const EnvironmentLookup& get = {});

/// Reads the variables of the first of these launchers whose rank or size is set and not empty:
/// - torchrun: RANK, WORLD_SIZE, LOCAL_RANK (0 when missing: one process per host, as Kubernetes' operators do);
/// - Open MPI: OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK;
/// - MPICH and Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID;
/// - Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, only inside a step of srun. The shells of salloc and batch
///   scripts have them, too, and are one process. (Last, as the variables of a step around mpirun remain set; but
///   before PMI's without MPI_LOCALRANKID, which srun may set.)
/// More than one process also needs MASTER_ADDR and MASTER_PORT. The store listens on MASTER_PORT + 1, since
/// torchrun's own store uses MASTER_PORT; SHERD_STORE_PORT names another port, and MASTER_PORT may then be
/// missing. Where the launcher says that all are on one host, both may be missing: the default is 127.0.0.1
/// and a port derived from the job's name.
///
/// More than one process also reads the job's secret from SHERD_JOB_SECRET or from the file that
/// SHERD_JOB_SECRET_FILE names, which only the user may read. It also reads SHERD_STORE_WITHOUT_SECRET,
/// "everywhere" (default) or "loopback".
/// @throws InvalidArgument naming everything that is missing or wrong.
LaunchEnvironment from_environment(const EnvironmentLookup& get = {});

/// Connects to the job's store: rank 0 listens on store_port, the others connect to it and retry until
/// `timeout`.
///
/// Address: on one host, 127.0.0.1 (::1 where that is store_host) and nothing else, whatever store_host is.
/// On several hosts it is store_host, when that is an address of rank 0's host. It is every interface when
/// store_host is a name, which may mean another address on other hosts, or an address that is routed to rank
/// 0's host.
///
/// Authentication: with a secret both sides of a connection first prove that they know it (HMAC-SHA256 over
/// two fresh random numbers; the secret itself is never sent). This excludes other programs that can reach
/// the port. Later messages are neither encrypted nor signed: it does not exclude an attacker who can change
/// packets between the hosts. Without a secret every connection is accepted, see WithoutSecret. A connection
/// that does not prove within 10 s that it is a rank of the job, or sends anything else, is dropped, and the
/// log has a line with its address and the reason. For very many in a short time it has one line per address.
///
/// When a process other than rank 0 ends without having closed its store, the store announces it (see
/// AbortNotice). Rank 0's store waits for the others to close theirs, for at most `linger`, before it closes.
/// A request without an answer for `timeout` fails.
/// @throws CommError: the port is in use, no answer, an answer from another job or another program, or
/// different secrets, which the message says; InvalidArgument: a job on several hosts without a secret, with
/// WithoutSecret::loopback.
std::shared_ptr<Store> connect_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout,
                                     const StoreOptions& options = {});

}  // namespace sherd
