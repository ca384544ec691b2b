#include <sherd/comm/backend_choice.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string_view>

#include <sherd/base/error.h>
#include <sherd/comm/backend.h>

namespace sherd {
namespace {

constexpr const char *kTorchRank = "RANK", *kTorchSize = "WORLD_SIZE";

std::string value_of(const EnvironmentLookup& get, const char* name) {
  const char* const value = get ? get(name) : std::getenv(name);
  return value ? value : "";
}

/// Job of a launcher other than torchrun. `rank`: the variable with a process's rank.
struct OuterJob {
  JobHint hint;
  const char* rank = "";
  /// MPI_Init() finds the other processes by it.
  bool serves_mpi = false;
};

// Returns the job that the environment shows without torchrun's variables. torchrun may run inside of it, or
// have left its variables in the shell.
OuterJob job_beside_torchrun(const EnvironmentLookup& get) {
  OuterJob job;
  job.hint = job_in_environment([&get](const char* name) -> const char* {
    const std::string_view asked = name;
    if (asked == kTorchRank || asked == kTorchSize) return nullptr;
    return get ? get(name) : std::getenv(name);
  });
  const bool slurm = job.hint.variable == "SLURM_NTASKS";
  job.rank = slurm ? "SLURM_PROCID" : job.hint.variable == "PMI_SIZE" ? "PMI_RANK" : "OMPI_COMM_WORLD_RANK";
  // srun sets a rank for its tasks even without MPI; its plugins for MPI set these variables.
  const auto has = [&](const char* name) { return !value_of(get, name).empty(); };
  job.serves_mpi = job.hint.present && (!slurm || has("PMIX_RANK") || has("PMI_FD") || has("PMI_RANK"));
  return job;
}

// Returns how torchrun's variables contradict those of MPI's launcher; "" when they agree or one set is
// missing. Both would be used: one by MPI, the other by the store.
std::string disagreement(BackendKind backend, const EnvironmentLookup& get) {
  const OuterJob outer = job_beside_torchrun(get);
  // torchrun's own processes set this, and mpirun or srun may have started one torchrun on every host.
  if (!outer.serves_mpi || (backend == BackendKind::nccl && !value_of(get, "TORCHELASTIC_RUN_ID").empty()))
    return "";
  const bool slurm = outer.hint.variable == "SLURM_NTASKS";
  if (backend == BackendKind::nccl && slurm) return "";  // other launchers than torchrun set RANK, too
  std::vector<std::string> pairs;
  for (const auto& [torch, mpi] :
       {std::pair(kTorchSize, outer.hint.variable.c_str()), std::pair(kTorchRank, outer.rank)}) {
    const std::string one = value_of(get, torch), other = value_of(get, mpi);
    if (!one.empty() && !other.empty() && one != other)
      pairs.push_back(fmt::format("{} is {}, but {} is {}", torch, one, mpi, other));
  }
  if (pairs.empty()) return "";
  return fmt::format(
      "{}: two launchers do not agree about this process; unset torchrun's variables where they were left "
      "behind "
      "(`env -u RANK -u WORLD_SIZE -u LOCAL_RANK`), or start it by one launcher alone",
      fmt::join(pairs, " and "));
}

[[noreturn]] void no_launcher_of_mpi(const JobHint& job) {
  throw InvalidArgument(
      fmt::format("backend = auto: {} is {}, so this is one of {} processes; they compute on CPUs, which MPI "
                  "alone joins, and "
                  "nothing of MPI's launcher is in the environment: start them with `mpirun -n {}` or `srun "
                  "--mpi=pmix`, give "
                  "device.kind = cuda, or give job.bootstrap = none where each is to run alone",
                  job.variable, job.processes, job.processes, job.processes));
}

// Throws NotCompiled. A fallback to another backend would give each process a world of its own.
void require_built(bool built, const char* name, const JobHint& job, const char* remedy) {
  if (built) return;
  throw NotCompiled(fmt::format(
      "backend = auto: {} is {}, which asks for backend = {}, and this build does not have it; {}",
      job.variable, job.processes, name, remedy));
}

/// Names of the backends that join a job, as values of the option.
std::string joining_backends() {
  std::vector<std::string> names;
  for (const Backend& b : backends())
    if (b.join) names.push_back(fmt::format("backend = {}", b.name));
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

BackendSituation BackendSituation::of(const LaunchOptions& options) {
  return {.device = options.device.kind,
          .bootstrap = options.job.bootstrap,
          .has_mpi = backend_of(BackendKind::mpi).is_built(),
          .has_nccl = backend_of(BackendKind::nccl).is_built()};
}

BackendChoice choose_backend(const BackendSituation& situation, const EnvironmentLookup& get) {
  const BackendKind joining = situation.device == DeviceKind::cuda ? BackendKind::nccl : BackendKind::mpi;
  if (situation.bootstrap == Bootstrap::none) return {BackendKind::local, "job.bootstrap = none"};
  if (situation.bootstrap == Bootstrap::mpi) return {joining, "job.bootstrap = mpi"};
  const JobHint torch_or_other = job_in_environment(get);
  if (!torch_or_other.present) return {BackendKind::local, "no launcher's variables are set"};
  if (const std::string wrong = disagreement(joining, get); !wrong.empty()) throw InvalidArgument(wrong);
  if (torch_or_other.processes == 0) static_cast<void>(from_environment(get));  // throws the reason
  const OuterJob outer = job_beside_torchrun(get);
  const JobHint& job = joining == BackendKind::mpi && outer.serves_mpi ? outer.hint : torch_or_other;
  const std::string reason = fmt::format("{} is {}", job.variable, job.processes);
  // A job of one process needs no rendezvous, and so no MPI.
  if (job.processes == 1) return {BackendKind::local, reason};
  if (joining == BackendKind::nccl) {
    require_built(situation.has_nccl, "nccl", job, "configure it with -DSHERD_CUDA=ON -DSHERD_NCCL=ON");
    return {joining, reason + " and device.kind = cuda"};
  }
  // MPI_Init() of such a process makes a world of one: every process would train alone.
  if (!outer.serves_mpi) no_launcher_of_mpi(job);
  require_built(situation.has_mpi, "mpi", job, "configure it with -DSHERD_MPI=ON");
  return {joining, reason};
}

std::string lone_copies(const LaunchOptions& options, const EnvironmentLookup& get) {
  const Backend& backend = backend_of(options.backend);
  const JobHint job = job_in_environment(get);
  if (backend.join || options.job.bootstrap == Bootstrap::none || job.processes <= 1) return "";
  return fmt::format(
      "{} is {}: this is one of {} processes, and with backend = {} each of them would run all ranks by "
      "itself; give {} "
      "to make them the ranks of one job, or job.bootstrap = none where each is to run alone",
      job.variable, job.processes, job.processes, backend.name, joining_backends());
}

std::vector<std::string> launch_contradictions(int ranks, const LaunchOptions& options,
                                               const EnvironmentLookup& get) {
  std::vector<std::string> found;
  if (options.job.bootstrap == Bootstrap::none) return found;
  if (std::string lone = lone_copies(options, get); !lone.empty()) found.push_back(std::move(lone));
  const Backend& backend = backend_of(options.backend);
  if (!backend.join) return found;
  if (std::string wrong = disagreement(options.backend, get); !wrong.empty()) {
    found.push_back(std::move(wrong));
    return found;  // the number of processes is unknown then
  }
  const OuterJob outer = job_beside_torchrun(get);
  const bool by_mpi = backend.joins_by_mpi || options.job.bootstrap == Bootstrap::mpi;
  if (by_mpi && !outer.serves_mpi) return found;  // MPI_Init() may still know it
  const JobHint job = by_mpi ? outer.hint : job_in_environment(get);
  if (job.processes > 0 && job.processes != ranks)
    found.push_back(fmt::format(
        "ranks = {}, but {} is {}: with backend = {} each process of the job is one rank; give ranks = {}, "
        "leave it out, "
        "or start {} process{}",
        ranks, job.variable, job.processes, backend.name, job.processes, ranks, ranks == 1 ? "" : "es"));
  return found;
}

}  // namespace sherd
