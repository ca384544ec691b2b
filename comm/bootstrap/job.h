// Rendezvous of a job's processes: options and joining.
#pragma once

#include <chrono>
#include <string_view>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

enum class Bootstrap {
  /// Uses RANK, WORLD_SIZE and so on: a job when a launcher's variables are set (see from_environment).
  env,
  /// Always a job, started by mpirun or srun.
  mpi,
  /// No job; ranks are threads of this process, whatever the environment says.
  none
};

/// Parses "env", "mpi" or "none". @throws InvalidArgument listing the legal names.
Bootstrap parse_bootstrap(std::string_view name);
const char* name_of(Bootstrap b);

struct JobOptions {
  Bootstrap bootstrap = Bootstrap::env;
  StoreOptions store = {};
};

/// Returns whether this process belongs to a job: by the option or, with Bootstrap::env, the environment.
bool is_part_of_a_job(const JobOptions& options);

/// Makes this process a member of its job. Every process of the job calls.
/// @pre is_part_of_a_job()
/// @throws as from_environment(), connect_store() and mpi_bootstrap().
Job join_job(const JobOptions& options, std::chrono::milliseconds timeout);

}  // namespace sherd
