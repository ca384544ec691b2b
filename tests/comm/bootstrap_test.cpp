#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <map>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/nccl/detail/nccl_world.h>

#include "comm/environment_variables.h"
#include "comm/reserved_port.h"
#include "comm/store_lines.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

LaunchEnvironment environment_in(const Variables& variables) { return from_environment(lookup(variables)); }

std::string refusal(const Variables& variables) {
  try {
    environment_in(variables);
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
  expect(environment_in(v), 5, 8, 1, "node0", 29501);
  Variables own = v;
  own["SHERD_STORE_PORT"] = "700";
  own.erase("MASTER_PORT");
  expect(environment_in(own), 5, 8, 1, "node0", 700);
}

const Variables kSlurmStep{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},   {"SLURM_LOCALID", "3"},
                           {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"},  {"SLURM_STEP_NUM_NODES", "2"},
                           {"MASTER_ADDR", "n0"},  {"MASTER_PORT", "29500"}};

JobHint hint(const Variables& variables) { return job_in_environment(lookup(variables)); }

TEST(Environment, OfSlurmAndOpenMpi) {
  Variables v{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},  {"SLURM_LOCALID", "3"},
              {"SLURM_STEP_ID", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}};
  expect(environment_in(v), 3, 4, 3, "::1", 2);
  // mpirun inside a batch job: every rank sees the batch step's SLURM_PROCID.
  v["OMPI_COMM_WORLD_RANK"] = "1";
  v["OMPI_COMM_WORLD_SIZE"] = "2";
  v["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  expect(environment_in(v), 1, 2, 0, "::1", 2);
}

// Started as by Kubernetes' operators, one process a pod.
TEST(Environment, WithoutALocalRankItIsTheOnlyOneOfItsHost) {
  const Variables v{
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  expect(environment_in(v), 3, 4, 0, "job-master-0", 23457);
  EXPECT_FALSE(environment_in(v).one_host);
}

TEST(Environment, OfMpichAndIntelMpi) {
  const Variables v{{"PMI_RANK", "1"},
                    {"PMI_SIZE", "2"},
                    {"MPI_LOCALRANKID", "1"},
                    {"MASTER_ADDR", "h"},
                    {"MASTER_PORT", "9"}};
  expect(environment_in(v), 1, 2, 1, "h", 10);
  // Their daemons may be tasks of a step; and srun may speak PMI itself.
  expect(environment_in(with(kSlurmStep, v)), 1, 2, 1, "h", 10);
  expect(environment_in(with(kSlurmStep, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})), 3, 4, 3, "n0", 29501);
}

TEST(Environment, OfSlurmIsAJobInsideAStepOnly) {
  EXPECT_TRUE(hint(kSlurmStep).present);
  EXPECT_EQ(hint(kSlurmStep).processes, 4);
  EXPECT_EQ(hint(kSlurmStep).variable, "SLURM_NTASKS");
  EXPECT_EQ(environment_in(kSlurmStep).job, "77.0");
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
  const LaunchEnvironment e = environment_in(mpi);
  EXPECT_TRUE(e.one_host);
  EXPECT_EQ(e.store_host, "127.0.0.1");
  EXPECT_GE(e.store_port, 20'000);
  EXPECT_LT(e.store_port, 30'000);
  EXPECT_EQ(e.job, "706805761");
  EXPECT_EQ(environment_in(with(mpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).store_port, e.store_port);
  EXPECT_NE(environment_in(with(mpi, {{"PMIX_NAMESPACE", "706805762"}})).store_port, e.store_port);
  expect(environment_in(with(mpi, {{"MASTER_ADDR", "[fe80::1]"}, {"MASTER_PORT", "5"}})), 1, 2, 1, "fe80::1",
         6);
  EXPECT_THAT(refusal(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_TRUE(environment_in(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "1"}})).one_host);
}

TEST(Environment, OneProcessNeedsNoStore) {
  expect(environment_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}), 0, 1, 0, "", 0);
}

const Variables kTwo{
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};

TEST(Environment, HasTheJobsSecret) {
  EXPECT_EQ(environment_in(kTwo).secret, "");
  EXPECT_EQ(environment_in(kTwo).without_secret, WithoutSecret::everywhere);
  EXPECT_EQ(environment_in(with(kTwo, {{"SHERD_JOB_SECRET", " a b\n"}})).secret, " a b\n");
  EXPECT_EQ(environment_in(with(kTwo, {{"SHERD_STORE_WITHOUT_SECRET", "loopback"}})).without_secret,
            WithoutSecret::loopback);
  EXPECT_EQ(environment_in(with(kTwo, {{"SHERD_STORE_WITHOUT_SECRET", "everywhere"}})).without_secret,
            WithoutSecret::everywhere);
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_STORE_WITHOUT_SECRET", "lo"}})),
              AllOf(HasSubstr("SHERD_STORE_WITHOUT_SECRET 'lo' is unknown; use everywhere or loopback"),
                    Not(HasSubstr("torchrun"))));
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_JOB_SECRET", ""}})),
              HasSubstr("SHERD_JOB_SECRET is set and empty"));
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_JOB_SECRET", "a"}, {"SHERD_JOB_SECRET_FILE", "/b"}})),
              HasSubstr("SHERD_JOB_SECRET and SHERD_JOB_SECRET_FILE are both set"));
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_JOB_SECRET", std::string(5000, 'x')}})),
              HasSubstr("more than 4096 bytes"));
  EXPECT_EQ(environment_in(with(kTwo, {{"SHERD_JOB_SECRET", std::string(4096, 'x')}})).secret.size(), 4096u);
  EXPECT_EQ(
      environment_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"SHERD_JOB_SECRET", ""}})
          .secret,
      "")
      << "one process has no store";
}

TEST(Environment, TakesASecretFromAFileOfTheUsersAlone) {
  const TemporaryFolder folder;
  const std::string path = folder / "secret";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path, std::ios::binary) << text;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  };
  const Variables v = with(kTwo, {{"SHERD_JOB_SECRET_FILE", path}});
  EXPECT_THAT(refusal(v), AllOf(HasSubstr(path), HasSubstr("No such file")));
  for (const char* text : {"a b", "a b\n", "a b\r\n"}) {
    write(text, 0600);
    EXPECT_EQ(environment_in(v).secret, "a b");
  }
  write("a\nb\n\n", 0400);
  EXPECT_EQ(environment_in(v).secret, "a\nb\n");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  for (const mode_t mode : {0644u, 0640u, 0604u, 0620u, 0602u}) {
    write("a b", mode);
    EXPECT_THAT(refusal(v), AllOf(HasSubstr(path), HasSubstr("others may read or write it"),
                                  HasSubstr("chmod 600"), Not(HasSubstr("a b"))))
        << mode;
  }
  write("\n", 0600);
  EXPECT_THAT(refusal(v), HasSubstr("has no bytes"));
  write(std::string(4096, 'x') + "\n", 0600);
  EXPECT_EQ(environment_in(v).secret.size(), 4096u);
  write(std::string(4097, 'x'), 0600);
  EXPECT_THAT(refusal(v), HasSubstr("more than 4096 bytes"));
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_JOB_SECRET_FILE", folder.path().string()}})),
              HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((path + "2").c_str(), 0600), 0);
  EXPECT_THAT(refusal(with(kTwo, {{"SHERD_JOB_SECRET_FILE", path + "2"}})), HasSubstr("not a regular file"));
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
  for (const std::string& address :
       std::vector<std::string>{"my host", " ", "127.0.0.1 ", "http://node0", "node0:29500", "node[1-4]"})
    EXPECT_THAT(
        refusal(with(kTwo, {{"MASTER_ADDR", address}})),
        HasSubstr("MASTER_ADDR is \"" + address + "\", which is neither a host's name nor an address"))
        << address;
  EXPECT_THAT(refusal({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}),
              AllOf(HasSubstr("SLURM_NTASKS is not set"), HasSubstr("SLURM_LOCALID is not set")));
}

/// Returns whether the store of a job of two with the listening host `host` answers on `address`.
bool answers(const std::string& host, bool one_host, const std::string& address) {
  const ReservedPort port;
  const auto store = connect_store({0, 2, 0, host, port.number(), one_host}, 1s, {.linger = 1s});
  std::string why;
  return static_cast<bool>(Socket::connect(address, port.number(), Clock::now() + 60s, why));
}

// Kubernetes gives the first pod MASTER_ADDR=localhost and the others a name; or it is a service's address,
// which no host has.
TEST(Bootstrap, ListensOnEveryInterfaceUnlessAllAreOnOneHost) {
  EXPECT_TRUE(answers("localhost", false, "127.0.0.2"));
  EXPECT_TRUE(answers("127.0.0.1", false, "127.0.0.2"));
  EXPECT_FALSE(answers("127.0.0.1", true, "127.0.0.2"));
  EXPECT_TRUE(answers("127.0.0.1", true, "127.0.0.1"));
  EXPECT_TRUE(answers("192.0.2.77", true, "127.0.0.1")) << "an address of nobody's";
}

/// An IPv4 address of this host's that is not loopback; empty when it has none.
std::string own_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string found;
  for (const ifaddrs* i = list; i && found.empty(); i = i->ifa_next) {
    char text[64];
    if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
        getnameinfo(i->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        !is_loopback(text))
      found = text;
  }
  freeifaddrs(list);
  return found;
}

TEST(Bootstrap, ListensOnTheAddressThatTheOthersUseWhereItIsItsOwn) {
  const std::string own = own_address();
  if (own.empty()) GTEST_SKIP() << "this host has loopback alone";
  EXPECT_TRUE(answers(own, false, own));
  EXPECT_FALSE(answers(own, false, "127.0.0.1"));
  EXPECT_FALSE(answers(own, true, own)) << "on one host, loopback is enough";
  EXPECT_TRUE(answers(own, true, "127.0.0.1"));
}

TEST(WithoutASecret, SeveralHostsAreWarnedOfOnceOrRefused) {
  Lines lines;
  const ReservedPort reserved;
  const int port = reserved.number();
  LaunchEnvironment e{0, 2, 0, "node0", port};
  connect_store(e, 1s, {.log = lines.log()});
  EXPECT_THAT(lines.all(), ElementsAre(AllOf(HasSubstr("no secret"), HasSubstr("SHERD_JOB_SECRET"),
                                             HasSubstr("port " + std::to_string(port)))));
  e.without_secret = WithoutSecret::loopback;
  for (const int rank : {0, 1}) {
    e.rank = rank;
    EXPECT_THAT(message_of<InvalidArgument>([&] { connect_store(e, 1s, {.log = lines.log()}); }),
                AllOf(HasSubstr("node0"), HasSubstr("SHERD_JOB_SECRET"), HasSubstr("loopback")));
  }
  // With a secret, or on one host, no warning.
  e.rank = 0;
  e.secret = "the secret of this job";
  connect_store(e, 1s, {.log = lines.log()});
  connect_store({0, 2, 0, kLoopback, port, true}, 1s, {.log = lines.log()});
  e = {0, 2, 0, "127.0.0.1", port};
  e.without_secret = WithoutSecret::loopback;
  const auto store = connect_store(e, 1s, {.log = lines.log()});
  EXPECT_EQ(lines.all().size(), 1u);
  std::string why;
  EXPECT_FALSE(Socket::connect("127.0.0.2", port, Clock::now() + 60s, why))
      << "on loopback's own address alone";
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
