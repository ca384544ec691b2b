// `sherd run` as a program, with a launcher and training programs that are shell scripts.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/format/manifest.h>

#include "program.h"
#include "run/run_target.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Takes Open MPI's arguments, starts as many processes, and passes SIGUSR1 and SIGURG on to them.
constexpr const char* kLauncher = R"(#!/bin/bash
echo "launcher $*" >>"${0%/*}/log"
while [[ $1 != -n ]]; do shift; done
n=$2
shift 2
pids=()
trap 'kill -USR1 "${pids[@]}" 2>/dev/null' USR1
trap 'kill -URG "${pids[@]}" 2>/dev/null' URG
trap 'kill -TERM "${pids[@]}" 2>/dev/null; sleep 0.2; kill -KILL "${pids[@]}" 2>/dev/null' TERM
for ((r = 0; r < n; ++r)); do
  OMPI_COMM_WORLD_RANK=$r "$@" &
  pids+=($!)
done
for p in "${pids[@]}"; do
  while kill -0 "$p" 2>/dev/null; do wait "$p"; done
done
exit 0
)";

class Run : public ::testing::Test {
 protected:
  Run() { script("mpirun", kLauncher); }

  std::string script(const std::string& name, const std::string& text) {
    const std::string path = folder_.write(name, text);
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  /// The program of each rank: $start and $rank say which, `here` is the test's folder.
  void program(const std::string& body) {
    script("program",
           "#!/bin/bash\nhere=${0%/*}\nstart=$SHERD_RUN_START\nrank=$OMPI_COMM_WORLD_RANK\n"
           "[[ $rank == 0 ]] && echo \"program $*\" >>\"$here/log\"\n" +
               body + "\n");
  }
  /// With a short --grace, unless the flags say another.
  std::string arguments(const std::string& flags, const std::string& of_program = "") const {
    return fmt::format("run --mpirun {} {} {} -- {} {}", folder_ / "mpirun",
                       flags.find("--grace") == flags.npos ? "--grace 1" : "", flags, folder_ / "program",
                       of_program);
  }
  Finished run(const std::string& flags, const std::string& of_program = "") const {
    return run_sherd(folder_, arguments(flags, of_program));
  }
  std::string log() const { return read_bytes(folder_ / "log"); }
  int starts() const {
    const std::string text = log();
    int count = 0;
    for (size_t at = 0; (at = text.find("launcher ", at)) != text.npos; ++at) ++count;
    return count;
  }
  /// Makes a folder with the name and sequence number of a committed checkpoint.
  void checkpoint(const std::string& name, char sequence) const {
    std::string manifest("sherdckp\1\0\0\0\0\0\0\0", 16);
    manifest += sequence + std::string(15, '\0');  // an empty message follows
    const auto add_checksum = [&](const void* of, int64_t bytes) {
      const uint64_t sum = checksum(of, bytes);
      manifest.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    };
    add_checksum("", 0);
    add_checksum(manifest.data(), static_cast<int64_t>(manifest.size()));
    folder_.write(name + "/manifest.binpb", manifest);
  }

  TemporaryFolder folder_;
};

TEST_F(Run, EndsWithItsProgram) {
  program("echo text of $rank; echo noise of $rank >&2");
  const Finished f = run("--nproc 3", "--flag value");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("text of 0"), HasSubstr("text of 2")));
  EXPECT_THAT(f.err, AllOf(HasSubstr("sherd run: start 1 of at most 4: 3 ranks, from the beginning\n"),
                           HasSubstr("noise of 1"), HasSubstr("sherd run: ended well: 0 restarts"),
                           Not(HasSubstr("sherd-run-rank"))));
  EXPECT_THAT(log(), AllOf(HasSubstr("-n 3"), HasSubstr("--enable-recovery"), HasSubstr("sigkill_timeout 2 "),
                           HasSubstr("program --flag value\n")));
}

TEST_F(Run, AKilledRankIsNamedAndAllAreStartedAgain) {
  program("[[ $start == 1 && $rank == 1 ]] && kill -KILL $$\n[[ $start == 1 ]] && exec sleep 60\ntrue");
  const Finished f = run("--nproc 3");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(starts(), 2);
  EXPECT_THAT(f.err,
              ContainsRegex("start 2 of at most 4: 3 ranks, from the beginning, because rank 1 \\(process "
                            "[0-9]+ on [^)]*\\) was killed by signal 9 \\(Killed\\) after [0-9.]+ s"));
  EXPECT_THAT(f.err, HasSubstr("ended well: 1 restart;"));
}

TEST_F(Run, AKilledKeeperCostsItsRankAndIsNamed) {
  // The keeper and its parent, which the launcher has started.
  for (const char* killed : {"$PPID", "$(ps -o ppid= $PPID)"}) {
    fs::remove(folder_ / "log");
    program(fmt::format(
        "[[ $start == 1 && $rank == 1 ]] && kill -KILL {}\n[[ $start == 1 ]] && exec sleep 600\ntrue",
        killed));
    const Finished f = run("--nproc 3 --grace 600");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(starts(), 2);
    EXPECT_THAT(f.err,
                ContainsRegex("start 2 of at most 4: 3 ranks, from the beginning, because rank 1 \\(process "
                              "[0-9]+ on [^)]*\\) was killed by signal 9 \\(Killed\\) after [0-9.]+ s"));
  }
}

TEST_F(Run, AfterAStepTheOthersHaveTheWholeGraceToReportAKilledRank) {
  program(R"(
[[ $start == 2 ]] && exit 0
if [[ $rank == 1 ]]; then
  until [[ -s $here/metrics ]]; do sleep 0.05; done
  kill -KILL $$
fi
echo '{"step": 1, "loss": 1}' >$here/metrics
sleep 4
echo 'rank 1 is gone' >&2
exit 1)");
  const Finished f = run("--nproc 2 --grace 60", "--metrics " + (folder_ / "metrics"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("rank 1 is gone"),
                           ContainsRegex("start 2 of .* because rank 1 [^:]* was killed")));
}

TEST_F(Run, ARankThatDoesNotBeginWithTheOthersIsNamed) {
  std::string misses = kLauncher;
  misses.insert(misses.find("  OMPI_COMM_WORLD_RANK"),
                "  [[ $r == 1 && $SHERD_RUN_START == 1 ]] && continue\n");
  script("mpirun", misses);
  program("[[ $start != 1 ]] || exec sleep 600");
  const Finished f = run("--nproc 3 --begin-within 20");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err,
              ContainsRegex("start 2 of at most 4: 3 ranks, from the beginning, because only 2 ranks began, "
                            "rank 1 did not"));
}

TEST_F(Run, AnExitCodeIsReportedWithTheProgramsLastLines) {
  program("[[ $rank == 1 ]] && { echo 'cannot open the data' >&2; exit 4; }\nsleep 0.3");
  const Finished f = run("--nproc 2 --max-restarts 50");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(starts(), 2) << "a crash loop is no reason for 50 restarts";
  EXPECT_THAT(f.err, AllOf(HasSubstr("aborted: it failed twice in the same way before a step was done"),
                           HasSubstr("ended with exit code 4: cannot open the data")));
}

// 64 blocks of 512 bytes.
constexpr const char* kLimitFiles = "ulimit -f 64; ";

TEST_F(Run, AFileThatTheLimitOnFileSizesRefusesIsMissingRoom) {
  checkpoint("save/step_00000001", 1);
  program("[[ $start == 1 ]] && exit 4\ntrue");
  const std::string line = arguments("--nproc 1 --room-within 1", "--save " + (folder_ / "save"));
  // All files together are too large for one file, and each fits.
  for (const char* name : {"a", "b"})
    folder_.write("save/step_00000001/" + std::string(name), std::string(size_t{33} << 10, 'x'));
  const Finished large = run_sherd(folder_, line, kLimitFiles);
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.err, HasSubstr("for the limit on file sizes (ulimit -f)"));
  EXPECT_EQ(starts(), 1);
  for (const char* name : {"a", "b"})
    fs::resize_file(folder_ / ("save/step_00000001/" + std::string(name)), uintmax_t{31} << 10);
  folder_.write("save/step_00000001/c", std::string(size_t{31} << 10, 'x'));
  const Finished small = run_sherd(folder_, line, kLimitFiles);
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_EQ(starts(), 3);
}

TEST_F(Run, ProgramsGetTheSignalOfTheLimitOnFileSizesAsTheSupervisorGotIt) {
  program("kill -XFSZ $$\ntrue");
  EXPECT_THAT(run("--nproc 1 --max-restarts 0").err, HasSubstr("was killed by signal 25"));
  const Finished ignored = run_sherd(folder_, arguments("--nproc 1"), "trap '' XFSZ; ");
  EXPECT_EQ(ignored.exit_code, 0) << ignored.err;
}

TEST_F(Run, AfterASaveThatFailedTheNextStartWaitsForRoom) {
  // A checkpoint of more bytes than any disk here has, in a file without blocks.
  checkpoint("save/step_00000001", 1);
  const std::string huge = folder_.write("save/step_00000001/model", "");
  fs::resize_file(huge, uintmax_t{1} << 43);
  program("[[ $start == 1 ]] && exit 4\ntrue");
  const Finished full = run("--nproc 1 --room-within 1", "--save " + (folder_ / "save"));
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(starts(), 1) << "what another start trains is lost, too";
  EXPECT_THAT(full.err,
              AllOf(HasSubstr("start 2 waits for room, at most 1 s"),
                    HasSubstr("aborted: --save '" + (folder_ / "save") + "': No space left on device"),
                    HasSubstr("make room and give the same command again, which resumes from step 1")));
  std::thread cleaner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    fs::resize_file(huge, 10);
  });
  const Finished freed = run("--nproc 1", "--save " + (folder_ / "save"));
  cleaner.join();
  EXPECT_EQ(freed.exit_code, 0) << freed.err;
  EXPECT_THAT(freed.err, HasSubstr("start 2 of at most 4"));
}

TEST_F(Run, ASecondOneOnTheSameFolderIsRefusedWhileTheFirstOneRuns) {
  program(
      "[[ $1 == first ]] && { touch $here/begun; while [[ ! -e $here/over ]]; do sleep 0.05; done; }\ntrue");
  std::thread first([&] { EXPECT_EQ(run("--nproc 1", "first --save " + (folder_ / "save")).exit_code, 0); });
  while (!fs::exists(folder_ / "begun")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Finished second = run("--nproc 1", "second --save " + (folder_ / "save"));
  folder_.write("over", "");
  first.join();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err,
              AllOf(HasSubstr("another run saves there and holds '" + (folder_ / "save/supervisor")),
                    HasSubstr("first --save")));
  EXPECT_EQ(starts(), 1);
  EXPECT_EQ(run("--nproc 1", "third --save " + (folder_ / "save")).exit_code, 0);
}

TEST_F(Run, ACheckpointNameWithMoreDigitsThanAStepHasIsNotACheckpoint) {
  checkpoint("save/step_00000003", 1);
  checkpoint("save/step_99999999999999999999", 2);
  program("true");
  const Finished f = run("--nproc 1", "--save " + (folder_ / "save"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("from step 3"), Not(HasSubstr("stoll"))));
}

TEST_F(Run, TheKilledRankIsTheCauseThoughAPeersReportComesFirst) {
  // Rank 1 waits until rank 0's keeper, which reports its end, is gone.
  program(R"(
[[ $start == 2 ]] && exit 0
if [[ $rank == 0 ]]; then
  echo $PPID >$here/keeper.new; mv $here/keeper.new $here/keeper
  echo 'rank 1 is gone' >&2
  exit 1
fi
until [[ -s $here/keeper ]] && ! kill -0 $(cat $here/keeper) 2>/dev/null; do sleep 0.05; done
kill -KILL $$)");
  const Finished f = run("--nproc 2 --grace 3600");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err,
              ContainsRegex("start 2 of at most 4: 2 ranks, from the beginning, because rank 1 [^:]* was "
                            "killed by signal 9 \\(Killed\\) after"));
}

TEST_F(Run, RanksThatTheSupervisorEndsAreNotLost) {
  program("[[ $start == 2 ]] && exit 0\n[[ $rank == 1 ]] && kill -KILL $$\nexec sleep 600");
  const Finished f = run("--nproc 3 --shrink");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, HasSubstr("start 2 of at most 4: 2 ranks"));
}

TEST_F(Run, WhatHasEndedForGoodIsNotStartedAgain) {
  program("[[ $rank == 1 ]] || { echo '2 lines are missing' >&2; exit 3; }");
  const Finished f = run("--nproc 2");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(starts(), 1);
  EXPECT_THAT(f.err, AllOf(HasSubstr("aborted: the program has done all that it can"),
                           HasSubstr("ended with exit code 3: 2 lines are missing")));
}

TEST_F(Run, WhatRefusesItsArgumentsIsNotStartedAgain) {
  program("echo usage >&2; exit 2");
  const Finished f = run("--nproc 2");
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_EQ(starts(), 1);
}

TEST_F(Run, TheSameRankKilledAgainLeavesARank) {
  program("[[ $start -le 2 && $rank == 3 ]] && kill -SEGV $$\n[[ $start -le 2 ]] && exec sleep 60\ntrue");
  const Finished f = run("--nproc 4 --min-ranks 2", "--batch 12 --ranks=4");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(starts(), 3);
  EXPECT_THAT(f.err, HasSubstr("start 3 of at most 4: 3 ranks"));
  EXPECT_THAT(log(), HasSubstr("program --batch 12 --ranks=4 --ranks 3\n"));
}

TEST_F(Run, ProgressIsNotACrashLoopAndResumesTheNewestCheckpoint) {
  checkpoint("mine/step_00000040", 4);
  program(R"(
if [[ $rank == 0 ]]; then
  step=$((start * 10))
  mkdir -p $here/saved
  [[ $start != 2 ]] || { cp -r $here/mine/step_00000040 $here/saved/step_00000020; }
  echo "{\"config\": {\"steps\": 9}}" >>$here/metrics
  [[ $start -gt 3 ]] || echo "{\"step\": $step, \"loss\": 1}" >>$here/metrics
  touch $here/done.$start
fi
while [[ ! -e $here/done.$start ]]; do sleep 0.05; done
[[ $start == 6 ]] || exit 1)");
  const Finished f =
      run("--nproc 2 --max-restarts 50",
          fmt::format("--save {0}/saved --resume {0}/other --resume-parts model --metrics={0}/metrics",
                      folder_.path().string()));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(starts(), 5) << f.err;  // three with steps, two without
  EXPECT_THAT(f.err, HasSubstr("start 2 of at most 51: 2 ranks, from its --resume "));
  EXPECT_THAT(f.err, HasSubstr("start 3 of at most 51: 2 ranks, from step 20, because rank"));
  EXPECT_THAT(log(), HasSubstr(fmt::format(
                         "program --save {0}/saved --resume {0}/other --resume-parts model --metrics",
                         folder_.path().string())));
  EXPECT_THAT(log(),
              HasSubstr(fmt::format("program --save {0}/saved --metrics={0}/metrics --resume {0}/saved\n",
                                    folder_.path().string())));
}

TEST_F(Run, ResumesTheFoldersCheckpointUnlessItIsAnotherRuns) {
  checkpoint("saved/step_00000040", 4);
  program("[[ $start == 2 ]] || { echo $start >&2; exit 1; }");
  const std::string saved = folder_ / "saved";
  EXPECT_EQ(run("--nproc 1", "--save " + saved).exit_code, 0);
  EXPECT_THAT(log(), HasSubstr("program --save " + saved + " --resume " + saved + "\n"));
  fs::remove(folder_ / "log");
  EXPECT_EQ(run("--nproc 1", "--overwrite --save " + saved).exit_code, 0);
  EXPECT_THAT(log(), Not(HasSubstr("--resume")));
}

TEST_F(Run, ABranchThatTheCommandPassesOverIsNotGoneOnFrom) {
  checkpoint("saved/step_00000040", 4);
  checkpoint("saved/step_00000100", 5);
  checkpoint("mine/step_00000060", 6);
  program(R"(
[[ $start == 2 ]] && cp -r $here/mine/step_00000060 $here/saved/
[[ $start == 3 ]] || { echo $start >&2; kill -KILL $$; })");
  const std::string saved = folder_ / "saved";
  const Finished f = run("--nproc 1", fmt::format("--resume {0}/step_00000040 --save {0}", saved));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const std::string as_given = fmt::format("program --resume {0}/step_00000040 --save {0}\n", saved);
  const size_t first = log().find(as_given), second = log().rfind(as_given);
  EXPECT_TRUE(first != std::string::npos && second != first) << log();
  EXPECT_THAT(log(), HasSubstr(fmt::format("program --save {0} --resume {0}\n", saved)));
  EXPECT_THAT(f.err,
              AllOf(HasSubstr("start 2 of at most 4: 1 rank, from its --resume " + saved + "/step_00000040"),
                    HasSubstr("start 3 of at most 4: 1 rank, from step 60")));
}

TEST_F(Run, ItsOwnIsOnlyTheNewestCheckpointWithAllThatItHolds) {
  checkpoint("saved/step_00000040", 4);
  const std::string saved = folder_ / "saved";
  const auto own = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"program", "--save", saved});
    return RunTarget(flags).newest().step;
  };
  EXPECT_EQ(own({}), 40);
  EXPECT_EQ(own({"--resume="}), 40);
  EXPECT_EQ(own({"--resume", saved + "/"}), 40);
  EXPECT_EQ(own({"--resume", saved, "--resume-parts", "all"}), 40);
  EXPECT_EQ(own({"--resume", saved, "--resume-parts=optimizer"}), 0);
  EXPECT_EQ(own({"--resume", saved + "/step_00000040"}), 0) << "a step by name";
  EXPECT_EQ(own({"--resume", folder_ / "other"}), 0);
  EXPECT_EQ(own({"--overwrite"}), 0);
}

TEST_F(Run, RanksThatHangAreEnded) {
  program(
      "[[ $start == 2 ]] && exit 0\n[[ $rank == 0 ]] && exit 1\ntrap '' TERM\nwhile :; do sleep 0.1; done");
  const Finished f = run("--nproc 2");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, ContainsRegex("start 2 .* because rank 0 .* ended with exit code 1"));
}

// Script by which rank 1 suspends itself, and rank 0 detects it.
constexpr const char* kStops = R"(
stands() { [[ -s $here/pid ]] && grep -q '^State:.T' /proc/$(cat $here/pid)/status; }
if [[ $rank == 1 && ! -e $here/pid ]]; then
  echo $$ >$here/pid.new; mv $here/pid.new $here/pid
  kill -STOP $$
fi
[[ $rank == 0 && $start == 1 ]] && until stands; do sleep 0.05; done
)";

TEST_F(Run, SuspendedRanksAreNamedAndNotWaitedFor) {
  program(std::string(kStops) + "[[ $start == 2 || $rank == 1 ]] || exit 1");
  const Finished f = run("--nproc 2 --grace 3600");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(
      f.err, ContainsRegex("because rank 0 .* ended with exit code 1.*; rank 1 .* was stopped by signal 19"));
}

// What the supervisor has it pass on, and the SIGTERM by which its part on another host ends ranks.
TEST_F(Run, ALaunchersSignalEndsRanksThatStandStopped) {
  for (const char* signal : {"URG", "TERM"}) {
    for (const char* file : {"log", "pid"}) fs::remove(folder_ / file);
    std::string asks = kLauncher;
    asks.replace(asks.find("kill -URG"), 9, std::string("kill -") + signal);
    asks.insert(asks.rfind("exit 0"), "echo \"all ended\" >>\"${0%/*}/log\"\n");
    script("mpirun", asks);
    program(std::string(kStops) + "[[ $start == 2 || $rank == 1 ]] || exit 1");
    const Finished f = run("--nproc 2 --grace 3600");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    const std::string said = log();
    EXPECT_LT(said.find("all ended"), said.rfind("launcher ")) << signal << said;
  }
}

TEST_F(Run, ARankThatIsSuspendedTooLongHasFailed) {
  program(std::string(kStops) + "[[ $start == 2 ]] || exec sleep 600");
  const Finished f = run("--nproc 2 --stopped-for 1");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(starts(), 2);
  EXPECT_THAT(
      f.err, ContainsRegex("because rank 1 [^;]* was stopped by signal 19 [^;]* and did not continue after"));
}

TEST_F(Run, ARankThatContinuesHasNotFailed) {
  program(std::string(kStops) + "[[ $rank == 1 ]] || { kill -CONT $(cat $here/pid); sleep 6; }");
  const Finished f = run("--nproc 2 --stopped-for 5");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(starts(), 1) << f.err;
}

TEST_F(Run, RanksThatDoNotEndWithTheOthersAreNamed) {
  program("[[ $start == 2 || $rank == 0 ]] || exec sleep 600");
  const Finished f = run("--nproc 2 --end-within 3");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(starts(), 2) << f.err;
  EXPECT_THAT(
      f.err,
      HasSubstr("because rank 1 did not report its exit status within --end-within after the other ranks"));
}

TEST_F(Run, ALauncherThatDoesNotEndWithItsRanksIsEnded) {
  std::string hangs = kLauncher;
  hangs.replace(hangs.rfind("exit 0"), 6, "sleep 600");
  script("mpirun", hangs);
  program("true");
  const Finished f = run("--nproc 1 --end-within 1");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("all ranks have ended well, and the launcher has not"),
                           HasSubstr("sherd run: ended well: 0 restarts; 0.0 s of work lost")));
}

TEST_F(Run, RanksThatNeverBeginAreEnded) {
  script("mpirun", "#!/bin/bash\nexec sleep 600\n");
  program("true");
  const Finished f = run("--nproc 2 --begin-within 1 --max-restarts 0");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("only 0 ranks began"));
}

TEST_F(Run, ALauncherThatTwiceStartsNothingGetsFewerRanks) {
  script("mpirun", "#!/bin/bash\necho \"launcher \" >>${0%/*}/log\necho 'no route to host' >&2\nexit 1\n");
  program("true");
  const Finished f = run("--nproc 2 --max-restarts 2");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err,
              AllOf(HasSubstr("only 0 ranks began: no route to host"),
                    HasSubstr("start 2 of at most 3: 2 ranks"), HasSubstr("start 3 of at most 3: 1 rank,")));
  EXPECT_EQ(starts(), 3);
}

TEST_F(Run, HostsThatDoNotAnswerAreLeftOut) {
  script("shell", "#!/bin/bash\n[[ $1 != h2 || ! -e ${0%/*}/down ]]\n");
  program(
      "[[ $start == 1 && $rank == 1 ]] && { touch $here/down; kill -KILL $$; }\n[[ $start == 1 ]] && exec "
      "sleep 60\n"
      "true");
  const Finished f = run("--nproc 6 --hosts h1,h2,h3 --remote-shell " + (folder_ / "shell"), "--batch 12");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("does not reach them: h2"), HasSubstr("start 2 of at most 4: 4 ranks")));
  EXPECT_THAT(log(), AllOf(HasSubstr("--host h1:2,h2:2,h3:2"), HasSubstr("--host h1:2,h3:2")));
}

TEST_F(Run, WrongArgumentsExitWith2) {
  program("true");
  for (const char* flags :
       {"", "--nproc 0", "--nproc x", "--nproc 2 --min-ranks 3", "--nproc 2 --frob",
        "--nproc 2 --hosts a --hostfile b", "--nproc 2 --hosts 'a;b'", "--nproc 5 --hosts a:2,b:2"}) {
    const Finished f = run(flags);
    EXPECT_EQ(f.exit_code, 2) << flags << f.err;
    EXPECT_THAT(f.err, StartsWith("sherd")) << flags;
  }
  EXPECT_EQ(run_sherd(folder_, "run --nproc 2").exit_code, 2);
  EXPECT_EQ(run_sherd(folder_, "run --nproc 2 --").exit_code, 2);
  EXPECT_EQ(run("--nproc 3 --min-ranks 3", "--batch 4").exit_code, 2) << "no number of ranks fits";
  EXPECT_EQ(run("--nproc 2", "--config " + (folder_ / "none")).exit_code, 1);
  EXPECT_EQ(log(), "") << "nothing was started";
}

/// `sherd run` as a child of this process; its stderr is in the file `.err`, if `output` sends it nowhere else.
pid_t start(const TemporaryFolder& folder, const std::string& arguments, const std::string& output = "") {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const std::string command = std::string("exec ") + SHERD_TOOL + " " + arguments + " >/dev/null 2>" +
                              (folder / ".err") + " " + output;
  ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  ::_exit(127);
}

template <class Done>
bool within_seconds(int seconds, Done done) {
  for (int i = 0; i < 50 * seconds && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return done();
}

// What takes 1.5 s at least, and ends by no signal.
constexpr const char* kSlowly = "trap \"\" TERM; for ((i = 0; i < 15; ++i)); do sleep 0.1; done; ";

// A program that saves on SIGTERM; `saves` is what it does then.
std::string saving(const std::string& saves = "") {
  return "trap '" + saves +
         "echo saved >>$here/saves; exit 0' TERM\necho x >>$here/ready\nwhile :; do sleep 0.05; done\n";
}

/// Two ranks that are asked to stop. `stop` gets the supervisor.
class StopRun : public Run {
 protected:
  template <class Stop>
  void expect_saved(Stop stop, const std::string& flags = "", const std::string& output = "") {
    for (const char* file : {"log", "ready", "saves"}) fs::remove(folder_ / file);
    const pid_t child = start(folder_, arguments("--nproc 2 " + flags), output);
    ASSERT_TRUE(within_seconds(30, [&] { return read_bytes(folder_ / "ready") == "x\nx\n"; }));
    stop(child);
    EXPECT_EQ(code_of(child), 0) << read_bytes(folder_ / ".err");
    EXPECT_EQ(read_bytes(folder_ / "saves"), "saved\nsaved\n");
    EXPECT_EQ(starts(), 1);
  }
  static int code_of(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  /// All processes below one, itself included.
  static std::vector<pid_t> all_of(pid_t top) {
    std::vector<pid_t> all = {top};
    for (size_t i = 0; i < all.size(); ++i) {
      std::istringstream children(read_bytes(fmt::format("/proc/{0}/task/{0}/children", all[i])));
      for (pid_t child = 0; children >> child;) all.push_back(child);
    }
    return all;
  }
};

TEST_F(StopRun, EachStopSignalIsPassedOnAndTheRanksMaySave) {
  program(saving());
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    SCOPED_TRACE(signal);
    expect_saved([&](pid_t run) { ::kill(run, signal); });
    EXPECT_THAT(read_bytes(folder_ / ".err"), HasSubstr("stopped as asked, and ended well"));
  }
}

// scancel, systemd: the launcher, the keepers and the ranks have it, too.
TEST_F(StopRun, ASignalToEveryProcessLeavesTheRanksTimeToSave) {
  program(saving(kSlowly));
  expect_saved([&](pid_t run) {
    for (const pid_t process : all_of(run)) ::kill(process, SIGTERM);
  });
}

TEST_F(StopRun, TwoSignalsAtOnceAreOne) {
  program(saving(kSlowly));
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::chrono::steady_clock::duration between{};
    expect_saved([&](pid_t run) {
      const auto begin = std::chrono::steady_clock::now();
      ::kill(run, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::kill(run, SIGHUP);
      between = std::chrono::steady_clock::now() - begin;
    });
    if (between < std::chrono::milliseconds(200)) return;
  }
}

TEST_F(StopRun, ALaterSignalEndsTheRanksAtOnce) {
  program(saving("sleep 600; "));
  const pid_t child = start(folder_, arguments("--nproc 2"));
  ASSERT_TRUE(within_seconds(30, [&] { return read_bytes(folder_ / "ready") == "x\nx\n"; }));
  ::kill(child, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(child, SIGINT);
  EXPECT_EQ(code_of(child), 1);
  EXPECT_THAT(read_bytes(folder_ / ".err"), HasSubstr("stopped by signal 15"));
  EXPECT_FALSE(fs::exists(folder_ / "saves"));
}

// A program ends at the second one.
TEST_F(StopRun, ItsProgramReceivesOneSigtermHoweverManyItsKeeperDoes) {
  program(
      "trap 'echo term >>$here/terms' TERM\necho $PPID $(ps -o ppid= $PPID) >>$here/keepers\n"
      "echo x >>$here/ready\nuntil [[ -e $here/end ]]; do sleep 0.05; done\necho saved >>$here/saves\n");
  expect_saved([&](pid_t run) {
    ::kill(run, SIGTERM);
    EXPECT_TRUE(within_seconds(30, [&] { return read_bytes(folder_ / "terms") == "term\nterm\n"; }));
    for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
      std::istringstream keepers(read_bytes(folder_ / "keepers"));
      for (pid_t keeper = 0; keepers >> keeper;) ::kill(keeper, signal);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    folder_.write("end", "");
  });
  EXPECT_EQ(read_bytes(folder_ / "terms"), "term\nterm\n");
}

TEST_F(StopRun, ASignalThatItWasStartedToIgnoreStaysIgnored) {
  program(saving());
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGHUP, SIG_IGN);  // nohup
    const pid_t run = start(folder_, arguments("--nproc 2"));
    folder_.write("run", std::to_string(run));
    ::_exit(code_of(run));
  }
  ASSERT_TRUE(within_seconds(30, [&] { return read_bytes(folder_ / "ready") == "x\nx\n"; }));
  const pid_t run = std::stoi(read_bytes(folder_ / "run"));
  ::kill(run, SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_FALSE(fs::exists(folder_ / "saves"));
  ::kill(run, SIGTERM);
  EXPECT_EQ(code_of(child), 0);
}

// `tee` that Ctrl-C or anything else has ended.
TEST_F(StopRun, OutputWithoutAReaderEndsNothing) {
  program("for ((i = 0; i < 20; ++i)); do echo line; echo line >&2; done\n" +
          saving("echo line; echo line >&2; "));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  expect_saved(
      [&](pid_t run) {
        ::close(ends[0]);
        ::kill(run, SIGINT);
      },
      "", fmt::format(">&{0} 2>&{0} {0}>&-", ends[1]));
  ::close(ends[1]);
}

// What it starts saves after it has ended, by the signal or by a trap of its own; in a session of its own, too.
TEST_F(StopRun, AScriptThatStartsTheProgramLeavesItTimeToSave) {
  script("inner", "#!/bin/bash\nhere=${0%/*}\n" + saving(kSlowly));
  for (const char* starts : {"\"$here/inner\"\ntrue", "timeout 600 \"$here/inner\"\ntrue",
                             "trap 'exit 0' TERM\nsetsid \"$here/inner\" &\nwait\n"}) {
    SCOPED_TRACE(starts);
    program(starts);
    expect_saved([](pid_t run) { ::kill(run, SIGTERM); });
    expect_saved([](pid_t run) {
      for (const pid_t process : all_of(run)) ::kill(process, SIGTERM);
    });
  }
}

TEST_F(StopRun, TheCodeOfWhatAScriptStartsIsTheRanks) {
  script(
      "inner",
      "#!/bin/bash\nhere=${0%/*}\ntrap 'exit 7' TERM\necho x >>$here/ready\nwhile :; do sleep 0.05; done\n");
  program("\"$here/inner\"\ntrue");
  const pid_t child = start(folder_, arguments("--nproc 1"));
  ASSERT_TRUE(within_seconds(30, [&] { return fs::exists(folder_ / "ready"); }));
  ::kill(child, SIGTERM);
  EXPECT_EQ(code_of(child), 1);
  EXPECT_THAT(read_bytes(folder_ / ".err"), HasSubstr("ended with exit code 7"));
}

// One process has nothing to save; the other is killed while it saves, which its script's code does not show.
TEST_F(StopRun, AProcessThatIsKilledAtTheGraceIsNoSave) {
  script("inner",
         "#!/bin/bash\nhere=${0%/*}\ntrap \"$1\" TERM\necho x >>$here/ready\nwhile :; do sleep 0.05; done\n");
  program("\"$here/inner\" 'exit 0' & \"$here/inner\" : & wait");
  const pid_t child = start(folder_, arguments("--nproc 1 --stop-grace 1"));
  ASSERT_TRUE(within_seconds(30, [&] { return read_bytes(folder_ / "ready") == "x\nx\n"; }));
  ::kill(child, SIGTERM);
  EXPECT_EQ(code_of(child), 1);
}

// A stop signal that a rank alone receives: what it has started does not keep the run from ending.
TEST_F(Run, ARankThatASignalEndsIsReportedWhateverItLeaves) {
  script("inner", "#!/bin/bash\ntrap '' TERM\nsleep 600\n");
  program("setsid \"$here/inner\" & sleep 0.5; kill -TERM $$");
  const pid_t child = start(folder_, arguments("--nproc 1"));
  ASSERT_TRUE(within_seconds(60, [&] { return ::waitpid(child, nullptr, WNOHANG) != 0; }));
  EXPECT_THAT(read_bytes(folder_ / ".err"), HasSubstr("killed by signal 15"));
}

TEST_F(Run, NothingOutlivesASupervisorThatIsKilled) {
  // Suspended ones, those that ignore signals, and those that a script has started in a session of their own.
  script("inner",
         "#!/bin/bash\nhere=${0%/*}\ntrap '' TERM HUP INT\necho $$ >>$here/pids\n[[ $1 == 1 ]] && kill -STOP "
         "$$\n"
         "while :; do sleep 0.05; done\n");
  program("setsid \"$here/inner\" $rank\ntrue");
  const pid_t child = start(folder_, arguments("--nproc 2"));
  std::string pids;
  ASSERT_TRUE(within_seconds(30, [&] {
    pids = read_bytes(folder_ / "pids");
    return std::count(pids.begin(), pids.end(), '\n') == 2;
  }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::istringstream list(pids);
  for (pid_t p = 0; list >> p;) {
    EXPECT_TRUE(within_seconds(30, [&] {
      // Zombies may wait for the process that has inherited them.
      const std::string stat = read_bytes(fmt::format("/proc/{}/stat", p));
      return stat.empty() || stat.find(") Z") != stat.npos || stat.find(") X") != stat.npos;
    })) << p;
    ::kill(p, SIGKILL);
  }
}

}  // namespace
}  // namespace sherd::tools
