// `sherd run` without MPI: the ranks of one host, started by sherd itself.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "run_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using ::testing::ContainsRegex;

struct Variables {
  int start = 0, rank = -1, local_rank = -1, size = 0, local_size = 0;
  std::string job, secret, address;
};

struct LocalRun : Run {
  /// Each rank of each start writes its variables first.
  void local_program(const std::string& body) {
    script(
        "program",
        "#!/bin/bash\nhere=${0%/*}\nstart=$SHERD_RUN_START\nrank=$RANK\n"
        "echo $start $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TORCHELASTIC_RUN_ID $SHERD_JOB_SECRET "
        "${MASTER_ADDR-none} >>$here/log\n" +
            body + "\n");
  }
  /// No launcher is to be found.
  Finished local(const std::string& flags, const std::string& of_program = "",
                 const std::string& variables = "") const {
    return run_sherd(folder_,
                     fmt::format("run {} {} -- {} {}", flags.find("--grace") == flags.npos ? "--grace 1" : "",
                                 flags, folder_ / "program", of_program),
                     "SHERD_RUN_RANK=7 MASTER_ADDR=elsewhere " + variables + " ");
  }
  std::vector<Variables> written() const {
    std::vector<Variables> all;
    std::istringstream lines(log());
    for (Variables v; lines >> v.start >> v.rank >> v.local_rank >> v.size >> v.local_size >> v.job >>
                      v.secret >> v.address;)
      all.push_back(v);
    return all;
  }
};

TEST_F(LocalRun, EachRankHasItsVariablesAndAllHaveOneSecret) {
  local_program("echo text of $RANK; [[ $start == 2 ]] || exit $((10 + RANK))");
  for (const char* flags : {"--local --nproc 3", "--nproc 3"}) {
    std::filesystem::remove(folder_ / "log");
    const Finished f = local(flags, "--comm nccl");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, AllOf(HasSubstr("text of 0"), HasSubstr("text of 2")));
    EXPECT_THAT(f.err, ContainsRegex("because rank [0-2] .* ended with exit code 1[0-2]"));
    const std::vector<Variables> all = written();
    ASSERT_EQ(all.size(), 6u);
    std::map<int, std::set<int>> ranks;
    std::map<int, std::set<std::string>> jobs, secrets;
    for (const Variables& v : all) {
      ranks[v.start].insert(v.rank);
      jobs[v.start].insert(v.job);
      secrets[v.start].insert(v.secret);
      EXPECT_EQ(v.rank, v.local_rank);
      EXPECT_EQ(std::pair(v.size, v.local_size), std::pair(3, 3));
      EXPECT_EQ(v.secret.size(), 64u);
      EXPECT_EQ(v.address, "none") << "of another job";
    }
    for (const int start : {1, 2}) {
      EXPECT_EQ(ranks[start], (std::set<int>{0, 1, 2}));
      EXPECT_EQ(jobs[start].size(), 1u);
      EXPECT_EQ(secrets[start].size(), 1u);
    }
    EXPECT_NE(jobs[1], jobs[2]);
    EXPECT_NE(secrets[1], secrets[2]);
  }
}

TEST_F(LocalRun, AGivenSecretStays) {
  local_program("true");
  EXPECT_EQ(local("--local --nproc 2", "", "SHERD_JOB_SECRET=mine").exit_code, 0);
  for (const Variables& v : written()) EXPECT_EQ(v.secret, "mine");
}

TEST_F(LocalRun, AKilledProcessIsNamedAndAllRanksAreStartedAgain) {
  // The program, its keeper, the keeper's parent; the launcher of all.
  for (const char* killed : {"$$", "$PPID", "$(ps -o ppid= $PPID)", "$(ps -o ppid= $(ps -o ppid= $PPID))"}) {
    std::filesystem::remove(folder_ / "log");
    local_program(
        fmt::format("[[ $start == 1 && $rank == 1 ]] && sleep 1 && kill -KILL {}\n[[ $start == 1 ]] && exec "
                    "sleep 600\ntrue",
                    killed));
    const Finished f = local("--local --nproc 3");
    EXPECT_EQ(f.exit_code, 0) << killed << f.err;
    EXPECT_EQ(written().size(), 6u) << killed;
    // With the launcher all ranks are killed; what is reported first is named.
    EXPECT_THAT(f.err, HasSubstr("was killed by signal 9")) << killed;
  }
}

TEST_F(LocalRun, RanksThatAStopSignalReachesMaySave) {
  local_program(
      "trap 'echo saved >>$here/saves; exit 0' TERM\n"
      "[[ $rank == 0 ]] && (sleep 1; kill -TERM $(ps -o ppid= $(ps -o ppid= $(ps -o ppid= $PPID)))) &\n"
      "while :; do sleep 0.05; done");
  const Finished f = local("--local --nproc 3");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(read_bytes(folder_ / "saves"), "saved\nsaved\nsaved\n");
  EXPECT_THAT(f.err, HasSubstr("stopped as asked, and ended well"));
}

TEST_F(LocalRun, WrongArgumentsAreRefused) {
  local_program("true");
  EXPECT_THAT(local("--local --nproc 2 --hosts a,b").err, HasSubstr("--hosts"));
  EXPECT_EQ(local("--local --nproc 2 --hosts a,b").exit_code, 2);
  const Finished none = local("--local --nproc gpu", "", "CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("this host has no GPU"));
  EXPECT_THAT(local("--nproc 2", "--comm nccl --bootstrap mpi", "PATH=/nowhere").err, HasSubstr("mpirun"));
  EXPECT_THAT(local("--nproc 2", "--comm nccl", "PATH=/nowhere SLURM_JOB_NUM_NODES=2").err,
              HasSubstr("mpirun"))
      << "the ranks may be on several hosts";
}

}  // namespace
}  // namespace sherd::tools
