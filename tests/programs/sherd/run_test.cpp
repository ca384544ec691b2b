// `sherd run` as a program: starts, failures, restarts.
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <sherd/checkpoint/format/manifest.h>

#include "run/run_target.h"
#include "run_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;

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

}  // namespace
}  // namespace sherd::tools
