#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/nccl/detail/nccl_world.h>
#include <sherd/kernels/device/error.h>

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return from_environment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
    return "accepted";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

void expect(const LaunchEnvironment& e, int rank, int size, int local_rank, const std::string& host,
            int port) {
  EXPECT_EQ(e.rank, rank);
  EXPECT_EQ(e.size, size);
  EXPECT_EQ(e.local_rank, local_rank);
  EXPECT_EQ(e.store_host, host);
  EXPECT_EQ(e.store_port, port);
}

TEST(Environment, OfTorchrun) {
  const Variables v{{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"MASTER_ADDR", "node0"},
                    {"MASTER_PORT", "29500"},
                    {"SLURM_PROCID", "0"},  // torchrun inside a Slurm job
                    {"SLURM_NTASKS", "2"}};
  expect(read(v), 5, 8, 1, "node0", 29501);
  Variables own = v;
  own["SHERD_STORE_PORT"] = "700";
  own.erase("MASTER_PORT");
  expect(read(own), 5, 8, 1, "node0", 700);
}

const Variables kSlurmStep{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},   {"SLURM_LOCALID", "3"},
                           {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"},  {"SLURM_STEP_NUM_NODES", "2"},
                           {"MASTER_ADDR", "n0"},  {"MASTER_PORT", "29500"}};

Variables with(Variables v, const Variables& more) {
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}

JobHint hint(const Variables& variables) {
  return job_in_environment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(Environment, OfSlurmAndOpenMpi) {
  Variables v{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},  {"SLURM_LOCALID", "3"},
              {"SLURM_STEP_ID", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}};
  expect(read(v), 3, 4, 3, "::1", 2);
  // mpirun inside a batch job: every rank sees the batch step's SLURM_PROCID.
  v["OMPI_COMM_WORLD_RANK"] = "1";
  v["OMPI_COMM_WORLD_SIZE"] = "2";
  v["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  expect(read(v), 1, 2, 0, "::1", 2);
}

// As Kubernetes' operators start them, one process a pod.
TEST(Environment, WithoutALocalRankItIsTheOnlyOneOfItsHost) {
  const Variables v{
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  expect(read(v), 3, 4, 0, "job-master-0", 23457);
  EXPECT_FALSE(read(v).one_host);
}

TEST(Environment, OfMpichAndIntelMpi) {
  const Variables v{{"PMI_RANK", "1"},
                    {"PMI_SIZE", "2"},
                    {"MPI_LOCALRANKID", "1"},
                    {"MASTER_ADDR", "h"},
                    {"MASTER_PORT", "9"}};
  expect(read(v), 1, 2, 1, "h", 10);
  // Their daemons may be tasks of a step; and srun may speak PMI itself.
  expect(read(with(kSlurmStep, v)), 1, 2, 1, "h", 10);
  expect(read(with(kSlurmStep, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})), 3, 4, 3, "n0", 29501);
}

TEST(Environment, OfSlurmIsAJobInsideAStepOnly) {
  EXPECT_TRUE(hint(kSlurmStep).present);
  EXPECT_EQ(hint(kSlurmStep).processes, 4);
  EXPECT_EQ(hint(kSlurmStep).variable, "SLURM_NTASKS");
  EXPECT_EQ(read(kSlurmStep).job, "77.0");
  for (const char* step : {"", "4294967291", "4294967290", "x"})  // a shell of salloc, a batch script, ...
    EXPECT_FALSE(hint(with(kSlurmStep, {{"SLURM_STEP_ID", step}})).present) << step;
  EXPECT_FALSE(hint(with(kSlurmStep, {{"SLURM_PROCID", ""}})).present);
}

TEST(Environment, OneOfRankAndSizeMakesAJobAndEmptyOnesDoNot) {
  EXPECT_FALSE(hint({}).present);
  EXPECT_FALSE(hint({{"WORLD_SIZE", ""}, {"RANK", ""}, {"LOCAL_RANK", "3"}, {"SLURM_NTASKS", "8"}}).present);
  EXPECT_TRUE(hint({{"RANK", "3"}, {"LOCAL_RANK", "3"}}).present);
  EXPECT_EQ(hint({{"RANK", "3"}}).processes, 0);
  EXPECT_EQ(hint({{"WORLD_SIZE", "8"}}).processes, 8);
  EXPECT_EQ(hint({{"OMPI_COMM_WORLD_SIZE", "2"}}).processes, 2);
  EXPECT_EQ(hint({{"PMI_SIZE", "3"}}).variable, "PMI_SIZE");
  EXPECT_THAT(refusal({{"RANK", "3"}, {"LOCAL_RANK", "3"}}), HasSubstr("WORLD_SIZE is not set"));
}

TEST(Environment, OneHostNeedsNoAddress) {
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "706805761"}};
  const LaunchEnvironment e = read(mpi);
  EXPECT_TRUE(e.one_host);
  EXPECT_EQ(e.store_host, "127.0.0.1");
  EXPECT_GE(e.store_port, 20'000);
  EXPECT_LT(e.store_port, 30'000);
  EXPECT_EQ(e.job, "706805761");
  EXPECT_EQ(read(with(mpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).store_port, e.store_port);
  EXPECT_NE(read(with(mpi, {{"PMIX_NAMESPACE", "706805762"}})).store_port, e.store_port);
  expect(read(with(mpi, {{"MASTER_ADDR", "[fe80::1]"}, {"MASTER_PORT", "5"}})), 1, 2, 1, "fe80::1", 6);
  EXPECT_THAT(refusal(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_TRUE(read(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "1"}})).one_host);
}

TEST(Environment, OneProcessNeedsNoStore) {
  expect(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}), 0, 1, 0, "", 0);
}

TEST(Environment, RefusalsNameEverythingThatIsWrong) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE is not set"),
                                 HasSubstr("LOCAL_RANK is not set"), HasSubstr("MASTER_ADDR is not set"),
                                 HasSubstr("MASTER_PORT is not set"), HasSubstr("torchrun")));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "two"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "65535"}}),
              AllOf(HasSubstr("WORLD_SIZE is \"two\""), Not(HasSubstr("LOCAL_RANK is")),
                    HasSubstr("MASTER_PORT is \"65535\", not a number from 1 to 65534"),
                    Not(HasSubstr("MASTER_ADDR is"))));
  EXPECT_THAT(refusal({{"RANK", "4"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "0"},
                       {"MASTER_ADDR", "h"},
                       {"MASTER_PORT", "29500"}}),
              HasSubstr("RANK is 4 and LOCAL_RANK is 0, but WORLD_SIZE is 4"));
  EXPECT_THAT(
      refusal({{"RANK", "-1"}, {"WORLD_SIZE", "0"}, {"LOCAL_RANK", "99999999999999999999"}}),
      AllOf(HasSubstr("RANK is \"-1\""), HasSubstr("WORLD_SIZE is \"0\""), HasSubstr("LOCAL_RANK is \"")));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}),
              AllOf(HasSubstr("SLURM_NTASKS is not set"), HasSubstr("SLURM_LOCALID is not set")));
}

TEST(Backends, NcclThatIsNotCompiledSaysHowToTurnItOn) {
  try {
    make_nccl_world(std::shared_ptr<Device>(), LaunchEnvironment{.rank = 2, .size = 2});
    FAIL();
  } catch (const NotCompiled& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("-DSHERD_NCCL=ON"), HasSubstr("-DSHERD_CUDA=ON")));
  } catch (const InvalidArgument&) {  // compiled, and the rank is wrong
  }
}

}  // namespace
}  // namespace sherd::test
