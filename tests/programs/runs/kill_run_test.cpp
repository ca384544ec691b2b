// A run that saves after every step, killed at random instants: what was committed is never harmed.
// SHERD_KILLS sets how often (default 25).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "programs/runs/program.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

pid_t start(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TRAIN_GPT);
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(TRAIN_GPT, argv.data());
    ::_exit(127);
  }
  return child;
}

// Waits until the child ends or the time is up; true when it ended by itself.
bool ends_within(pid_t child, std::chrono::milliseconds time, int* status) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    if (::waitpid(child, status, WNOHANG) == child) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

int64_t newest_step(const fs::path& folder) {
  if (!fs::exists(folder)) return 0;
  const auto list = list_checkpoints(folder, FileSystem::posix());
  return list.empty() ? 0 : std::stoll(list.front().name.substr(5));
}

TEST(KillRun, WhatWasCommittedIsNeverHarmed) {
  const char* asked = std::getenv("SHERD_KILLS");
  const int kills = asked ? std::atoi(asked) : 25;
  const fs::path folder = scratch("killed"), data = scratch("text");
  fs::remove_all(folder);
  write_file(data, golden_text());
  std::mt19937 random(20261121);
  int64_t step = 0, lost = 0, committed = 0;
  for (int i = 0; i < kills; ++i) {
    std::vector<std::string> flags = {"--data",       data.string(), "--ranks", "3",       "--dim",
                                      "16",           "--layers",    "2",       "--heads", "2",
                                      "--seq",        "16",          "--batch", "6",       "--steps",
                                      "1000000",      "--optimizer", "muon",    "--save",  folder.string(),
                                      "--save-every", "1",           "--keep",  "3",       "--quiet"};
    if (i % 2 == 1) flags.push_back("--async-save");
    if (i % 4 >= 2)  // background saves read state where updates write it
      flags.insert(flags.end(), {"--offload", "state", "--offload-folder", data.parent_path().string(),
                                 "--offload-window", "2K"});
    if (step > 0) flags.insert(flags.end(), {"--resume", folder.string()});
    const pid_t child = start(flags);
    ASSERT_GT(child, 0);
    int status = 0;
    // Of three kills, one is at any time since its start, one after its first commit, one after any change on
    // disk.
    const auto before = names_in(folder);
    const auto waits = [&] {
      return i % 3 == 1 ? newest_step(folder) == step : i % 3 == 2 && names_in(folder) == before;
    };
    for (int ms = 0; ms < 20'000 && waits(); ++ms)
      ASSERT_FALSE(ends_within(child, std::chrono::milliseconds(1), &status)) << "kill " << i;
    const auto time = std::chrono::milliseconds(random() % 100);
    ASSERT_FALSE(ends_within(child, time, &status)) << "kill " << i << ": ended by itself, status " << status;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));

    const int64_t now = newest_step(folder);
    if (now < step) ++lost;
    if (now > step) ++committed;
    step = now;
    if (step == 0) continue;
    const auto damage = verify_checkpoint(folder / checkpoint_name(step));
    for (auto& d : damage) ADD_FAILURE() << "kill " << i << ": " << d.file << ": " << d.what;
    if (!damage.empty()) ++lost;
  }
  std::printf("%d kills, %lld runs that committed, newest step %lld, %lld lost\n", kills,
              static_cast<long long>(committed), static_cast<long long>(step), static_cast<long long>(lost));
  EXPECT_EQ(lost, 0);
  EXPECT_GT(committed, kills / 4) << "runs must get as far as saving, or this shows nothing";
  ASSERT_GT(step, 0);

  // The next save sweeps what the killed ones left.
  const Finished f = run_train_gpt({"--data",      data.string(),
                                    "--ranks",     "2",
                                    "--dim",       "16",
                                    "--layers",    "2",
                                    "--heads",     "2",
                                    "--seq",       "16",
                                    "--batch",     "6",
                                    "--optimizer", "muon",
                                    "--steps",     std::to_string(step + 1),
                                    "--resume",    folder.string(),
                                    "--save",      folder.string(),
                                    "--quiet"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(newest_step(folder), step + 1);
  for (auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace sherd::test
