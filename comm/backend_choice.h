// Choice of a process's backend from the launcher's environment, and checks of launches that it rules out.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

/// What a choice depends on, beside the environment.
struct BackendSituation {
  DeviceKind device = DeviceKind::cpu;
  Bootstrap bootstrap = Bootstrap::env;
  /// Whether this build has those backends.
  bool has_mpi = false, has_nccl = false;

  /// Of these options in this build.
  static BackendSituation of(const LaunchOptions& options);
};

struct BackendChoice {
  BackendKind backend = BackendKind::local;
  /// To be read after "because": "OMPI_COMM_WORLD_SIZE is 4".
  std::string reason;
};

/// - Where job.bootstrap = none, or there is no job, or it is one process: local.
/// - A job that computes on GPUs: nccl.
/// - A job that computes on CPUs: mpi, when mpirun started it, or srun with an MPI plugin (--mpi=pmix, pmi2).
/// The same on every process of a job. An empty `get`: ::getenv.
/// @throws InvalidArgument: processes on CPUs without MPI's launcher; two launchers that disagree (as
/// launch_contradictions() says); a count of processes that is no number. NotCompiled: the build lacks it.
BackendChoice choose_backend(const BackendSituation& situation, const EnvironmentLookup& get = {});

/// All that cannot be together of `options` for `ranks` ranks and the environment, in sentences that name the
/// variables and what to do; empty: nothing was found. launch() finds them, too, one at a time and after it
/// has begun.
/// - local in a job of several processes, each of which would run all ranks by itself;
/// - nccl or mpi with another number of ranks than the job has processes;
/// - torchrun's RANK or WORLD_SIZE beside other ones of MPI's launcher, as when they were left behind in the
///   shell. Not with nccl where torchrun itself runs (TORCHELASTIC_RUN_ID): mpirun or srun may start one on
///   every host.
/// With Bootstrap::none there is no job, and nothing is found.
std::vector<std::string> launch_contradictions(int ranks, const LaunchOptions& options,
                                               const EnvironmentLookup& get = {});

/// The first of those alone; empty: it is not so.
std::string lone_copies(const LaunchOptions& options, const EnvironmentLookup& get = {});

}  // namespace sherd
