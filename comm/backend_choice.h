// Choice of a process's backend from the launcher's environment, and checks of launches that it rules out.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

/// Inputs of a choice, beside the environment.
struct BackendSituation {
  DeviceKind device = DeviceKind::cpu;
  Bootstrap bootstrap = Bootstrap::env;
  /// Backends compiled into this build.
  bool has_mpi = false, has_nccl = false;

  /// Returns the situation of these options in this build.
  static BackendSituation of(const LaunchOptions& options);
};

struct BackendChoice {
  BackendKind backend = BackendKind::local;
  /// Reason, as a clause after "because": "OMPI_COMM_WORLD_SIZE is 4".
  std::string reason;
};

/// Chooses the backend; the same on every process of a job:
/// - job.bootstrap = none, no job, or a job of one process: local.
/// - A job that computes on GPUs: nccl.
/// - A job that computes on CPUs: mpi, when mpirun started it, or srun with an MPI plugin (--mpi=pmix, pmi2).
/// An empty `get`: `getenv`.
/// @throws InvalidArgument: processes on CPUs without MPI's launcher; two launchers that disagree (see
/// launch_contradictions()); a process count that is not a number. NotCompiled: the build lacks the backend.
BackendChoice choose_backend(const BackendSituation& situation, const EnvironmentLookup& get = {});

/// Returns all contradictions between `options`, `ranks` ranks and the environment, in sentences that name
/// the variables and the remedy; empty: none found. launch() detects them, too, one at a time and after it
/// has begun.
/// - local in a job of several processes, each of which would run all ranks by itself;
/// - nccl or mpi with another number of ranks than the job has processes;
/// - torchrun's RANK or WORLD_SIZE that differ from those of MPI's launcher, for example left over in the shell. Not
///   with nccl where torchrun itself runs (TORCHELASTIC_RUN_ID): mpirun or srun may start one on every host.
/// Finds nothing with Bootstrap::none, which has no job.
std::vector<std::string> launch_contradictions(int ranks, const LaunchOptions& options,
                                               const EnvironmentLookup& get = {});

/// Returns the first of those contradictions alone; empty when absent.
std::string lone_copies(const LaunchOptions& options, const EnvironmentLookup& get = {});

}  // namespace sherd
