#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <sherd/comm/bootstrap.h>
#include <sherd/comm/nccl/nccl_world.h>
#include <sherd/kernels/error.h>

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

TEST(Environment, OfSlurmAndOpenMpi) {
  Variables v{{"SLURM_PROCID", "3"},
              {"SLURM_NTASKS", "4"},
              {"SLURM_LOCALID", "3"},
              {"MASTER_ADDR", "::1"},
              {"MASTER_PORT", "1"}};
  expect(read(v), 3, 4, 3, "::1", 2);
  // mpirun inside a batch job: every rank sees the batch step's SLURM_PROCID.
  v["OMPI_COMM_WORLD_RANK"] = "1";
  v["OMPI_COMM_WORLD_SIZE"] = "2";
  v["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  expect(read(v), 1, 2, 0, "::1", 2);
}

TEST(Environment, OneProcessNeedsNoStore) {
  expect(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}), 0, 1, 0, "", 0);
}

TEST(Environment, RefusalsNameEverythingThatIsWrong) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE is not set"),
                                 HasSubstr("LOCAL_RANK is not set"), HasSubstr("MASTER_ADDR is not set"),
                                 HasSubstr("MASTER_PORT is not set"), HasSubstr("torchrun")));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "two"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "65535"}}),
              AllOf(HasSubstr("WORLD_SIZE is \"two\""), HasSubstr("LOCAL_RANK is not set"),
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
  EXPECT_THAT(refusal({{"SLURM_PROCID", "0"}}),
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
