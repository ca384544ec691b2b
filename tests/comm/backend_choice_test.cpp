// Choice of the backend by `auto`, and refusals of all backends, over imitated environments.

#include <string>

#include <sherd/base/error.h>
#include <sherd/comm/backend.h>
#include <sherd/comm/backend_choice.h>

#include "comm/environment_variables.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

const BackendSituation kCpu{.has_mpi = true, .has_nccl = true};
const BackendSituation kGpu{.device = DeviceKind::cuda, .has_mpi = true, .has_nccl = true};

/// "mpi, because OMPI_COMM_WORLD_SIZE is 4", or the refusal.
std::string chosen(const Variables& variables, const BackendSituation& situation = kCpu) {
  try {
    const BackendChoice choice = choose_backend(situation, lookup(variables));
    return std::string(name_of(choice.backend)) + ", because " + choice.reason;
  } catch (const Error& e) {
    return std::string("refused: ") + e.what();
  }
}

std::vector<std::string> found(int ranks, BackendKind backend, const Variables& variables,
                               Bootstrap bootstrap = Bootstrap::env) {
  LaunchOptions options;
  options.backend = backend;
  options.job.bootstrap = bootstrap;
  return launch_contradictions(ranks, options, lookup(variables));
}

const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
const Variables kTorchrun{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
const Variables kSrun{
    {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "1"}};

TEST(BackendChoice, IsLocalWithoutAJob) {
  EXPECT_EQ(chosen({}), "local, because no launcher's variables are set");
  EXPECT_EQ(chosen({}, kGpu), "local, because no launcher's variables are set");
  EXPECT_EQ(chosen({{"WORLD_SIZE", ""}, {"SLURM_NTASKS", "8"}}),
            "local, because no launcher's variables are set");
  // The shell of a batch script or of salloc.
  EXPECT_EQ(chosen(with(kSrun, {{"SLURM_STEP_ID", "4294967291"}, {"PMIX_RANK", "0"}})),
            "local, because no launcher's variables are set");
  EXPECT_EQ(chosen({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "local, because WORLD_SIZE is 1");
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "local, because OMPI_COMM_WORLD_SIZE is 1");
}

TEST(BackendChoice, IsMpiOnCpusUnderItsLauncher) {
  EXPECT_EQ(chosen(kMpirun), "mpi, because OMPI_COMM_WORLD_SIZE is 4");
  EXPECT_EQ(chosen({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}), "mpi, because PMI_SIZE is 3");
  for (const char* plugin : {"PMIX_RANK", "PMI_FD", "PMI_RANK"})
    EXPECT_EQ(chosen(with(kSrun, {{plugin, "1"}})), "mpi, because SLURM_NTASKS is 4") << plugin;
  // mpirun inside a batch job or a step, and beside torchrun's variables that say the same.
  EXPECT_EQ(chosen(with(kSrun, kMpirun)), "mpi, because OMPI_COMM_WORLD_SIZE is 4");
  EXPECT_EQ(chosen(with(kTorchrun, kMpirun)), "mpi, because OMPI_COMM_WORLD_SIZE is 4");
}

TEST(BackendChoice, IsNcclOnGpusUnderAnyLauncher) {
  EXPECT_EQ(chosen(kTorchrun, kGpu), "nccl, because WORLD_SIZE is 4 and device.kind = cuda");
  EXPECT_EQ(chosen(kSrun, kGpu), "nccl, because SLURM_NTASKS is 4 and device.kind = cuda");
  EXPECT_EQ(chosen(kMpirun, kGpu), "nccl, because OMPI_COMM_WORLD_SIZE is 4 and device.kind = cuda");
  // One torchrun on each of two hosts, started by mpirun.
  const Variables nested = with(with(kTorchrun, kMpirun), {{"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(chosen(with(nested, {{"TORCHELASTIC_RUN_ID", "none"}}), kGpu),
            "nccl, because WORLD_SIZE is 4 and device.kind = cuda");
  EXPECT_THAT(chosen(nested, kGpu), HasSubstr("two launchers"));
}

TEST(BackendChoice, FollowsTheBootstrapThatIsAskedFor) {
  BackendSituation alone = kCpu, mpi = kGpu;
  alone.bootstrap = Bootstrap::none;
  mpi.bootstrap = Bootstrap::mpi;
  EXPECT_EQ(chosen(kTorchrun, alone), "local, because job.bootstrap = none");
  EXPECT_EQ(chosen({}, mpi), "nccl, because job.bootstrap = mpi");
  mpi.device = DeviceKind::cpu;
  EXPECT_EQ(chosen({}, mpi), "mpi, because job.bootstrap = mpi");
}

TEST(BackendChoice, RefusesWhatNoBackendJoins) {
  for (const auto& [variables, name] : {std::pair(kTorchrun, "WORLD_SIZE"), std::pair(kSrun, "SLURM_NTASKS")})
    EXPECT_THAT(chosen(variables), AllOf(HasSubstr(std::string("refused: backend = auto: ") + name + " is 4"),
                                         HasSubstr("mpirun -n 4"), HasSubstr("device.kind = cuda")));
  BackendSituation bare = kCpu;
  bare.has_mpi = bare.has_nccl = false;
  EXPECT_THAT(chosen(kMpirun, bare),
              AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is 4"), HasSubstr("-DSHERD_MPI=ON")));
  bare.device = DeviceKind::cuda;
  EXPECT_THAT(chosen(kTorchrun, bare), AllOf(HasSubstr("WORLD_SIZE is 4"), HasSubstr("-DSHERD_NCCL=ON")));
  EXPECT_THAT(chosen({{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(chosen({{"RANK", "1"}, {"WORLD_SIZE", "many"}}, kGpu), HasSubstr("WORLD_SIZE is \"many\""));
}

TEST(BackendChoice, RefusesTwoLaunchersThatDisagree) {
  const std::string size = chosen(with(with(kTorchrun, kMpirun), {{"WORLD_SIZE", "8"}}));
  EXPECT_THAT(size, AllOf(HasSubstr("WORLD_SIZE is 8, but OMPI_COMM_WORLD_SIZE is 4"),
                          HasSubstr("env -u RANK"), Not(HasSubstr("RANK is 1"))));
  EXPECT_THAT(chosen(with(kMpirun, {{"RANK", "0"}})), HasSubstr("RANK is 0, but OMPI_COMM_WORLD_RANK is 1"));
  EXPECT_THAT(chosen(with(kSrun, {{"PMIX_RANK", "1"}, {"RANK", "0"}, {"WORLD_SIZE", "4"}})),
              HasSubstr("RANK is 0, but SLURM_PROCID is 1"));
}

TEST(LaunchContradictions, AreNoneWhereAllIsWell) {
  EXPECT_THAT(found(4, BackendKind::local, {}), IsEmpty());
  EXPECT_THAT(found(4, BackendKind::mpi, kMpirun), IsEmpty());
  EXPECT_THAT(found(4, BackendKind::mpi, with(kMpirun, kTorchrun)), IsEmpty());
  EXPECT_THAT(found(4, BackendKind::nccl, kSrun), IsEmpty());
  EXPECT_THAT(
      found(8, BackendKind::nccl, with(with(kSrun, kTorchrun), {{"WORLD_SIZE", "8"}, {"PMIX_RANK", "0"}})),
      IsEmpty())
      << "torchrun, or another launcher with its variables, inside a step";
  EXPECT_THAT(found(3, BackendKind::local, with(kTorchrun, {{"WORLD_SIZE", "1"}})), IsEmpty());
  for (const BackendKind kind : {BackendKind::local, BackendKind::nccl})
    EXPECT_THAT(found(3, kind, kTorchrun, Bootstrap::none), IsEmpty());
  // Another MPI, whose variables are unknown here: MPI_Init() reads them.
  EXPECT_THAT(found(2, BackendKind::mpi, {{"MV2_COMM_WORLD_SIZE", "2"}}), IsEmpty());
}

TEST(LaunchContradictions, NameVariablesAndRemedies) {
  const auto lone = found(1, BackendKind::local, kMpirun);
  ASSERT_EQ(lone.size(), 1u);
  EXPECT_THAT(lone[0],
              AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is 4"), HasSubstr("backend = nccl or backend = mpi"),
                    HasSubstr("job.bootstrap = none")));
  const auto ranks = found(3, BackendKind::mpi, kMpirun);
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_THAT(ranks[0], AllOf(HasSubstr("ranks = 3, but OMPI_COMM_WORLD_SIZE is 4"),
                              HasSubstr("give ranks = 4"), HasSubstr("start 3 processes")));
  EXPECT_THAT(found(1, BackendKind::nccl, kTorchrun).at(0), HasSubstr("ranks = 1, but WORLD_SIZE is 4"));
  EXPECT_THAT(found(2, BackendKind::nccl, with(kTorchrun, kMpirun), Bootstrap::mpi).at(0),
              HasSubstr("ranks = 2, but OMPI_COMM_WORLD_SIZE is 4"));
  for (const BackendKind kind : {BackendKind::mpi, BackendKind::nccl})
    EXPECT_THAT(found(4, kind, with(kMpirun, {{"WORLD_SIZE", "8"}})).at(0),
                HasSubstr("WORLD_SIZE is 8, but OMPI_COMM_WORLD_SIZE is 4"));
}

}  // namespace
}  // namespace sherd::test
