// `sherd run` as a program that is stopped, and what it leaves.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "run_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

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

// It saves for a while: what ends at once ends for the script, before the signal ends that.
TEST_F(StopRun, TheCodeOfWhatAScriptStartsIsTheRanks) {
  script("inner",
         "#!/bin/bash\nhere=${0%/*}\ntrap 'sleep 0.5; exit 7' TERM\necho x >>$here/ready\nwhile :; do sleep "
         "0.05; done\n");
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
