// Runs whose optimizer state and masters rest in a file: limits of memory, and faults at every write.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "programs/runs/outcome.h"
#include "programs/runs/same_checkpoint.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

Flags small_model(const std::string& dim = "16") {
  const auto data = scratch("text");
  write_file(data, golden_text());
  return {"--data", data.string(), "--dim",   dim, "--layers", "2", "--heads",     "2",
          "--seq",  "16",          "--batch", "6", "--steps",  "4", "--precision", "bf16"};
}

Flags offloaded(const std::string& parts = "state,master", const std::string& window = "4K") {
  return {"--offload",        parts, "--offload-folder", scratch("").parent_path().string(),
          "--offload-window", window};
}

TEST(OffloadRun, WhatCannotBeOffloadedIsRefusedWithTheRemedy) {
  const auto refused = [](const Flags& flags) {
    const Finished f = run_train_gpt(small_model() + flags);
    EXPECT_EQ(f.exit_code, 2) << f.err;
    return f.err;
  };
  EXPECT_THAT(refused({"--offload", "state"}),
              HasSubstr("--offload state: on a CPU what is offloaded is a file; give --offload-folder"));
  EXPECT_THAT(refused({"--route", "fc=/offload:state"}), HasSubstr("give --offload-folder"));
  EXPECT_THAT(refused(offloaded("weights")), HasSubstr("use none, state or state,master"));
  EXPECT_THAT(refused(offloaded() + Flags{"--precision", "fp32"}),
              HasSubstr("fp32 weights are their own masters"));
  EXPECT_THAT(refused(offloaded() + Flags{"--master", "bf16"}), HasSubstr("--master bf16 has no masters"));
  EXPECT_THAT(refused({"--offload-window", "1M"}), HasSubstr("nothing passes windows"));
  EXPECT_THAT(run_train_gpt(small_model() + Flags{"--offload", "state", "--offload-folder", "/nowhere"}).err,
              AllOf(HasSubstr("offload folder '/nowhere'"), HasSubstr("No such file or directory")));
}

TEST(OffloadRun, StateBeyondTheMemoryLimitTrains) {
  const Flags large = small_model("192") + Flags{"--memory-limit", "16M"},
              small = offloaded("state,master", "256K");
  const Finished f = run_train_gpt(large);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, AllOf(HasSubstr("over the memory limit"), HasSubstr("The run is planned to take "),
                           HasSubstr("\n  fits with --"), HasSubstr(" ms a step, the same bits")));
  const Finished trained = run_train_gpt(large + small);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("of its host"), HasSubstr("on the host")));
}

TEST(OffloadRun, ResidentMemoryDoesNotGrowWithTheState) {
  const auto peak = [](const Flags& flags) {  // MiB at the end
    const Finished f =
        run_train_gpt(small_model("384") + Flags{"--threads", "1", "--optimizer", "adamw"} + flags);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    const size_t at = f.out.find("process: ");
    return std::stod(f.out.substr(at + 9));
  };
  const double resident = peak({}), offload = peak(offloaded("state", "64K"));
  // 3.6 million parameters: 8 bytes of each are offloaded.
  EXPECT_LT(offload, resident - 0.8 * 8 * 3.6) << resident;
}

/// A launcher under which write number `call` of offloaded state fails, or kills the process.
std::string at_write(const char* what, int call) {
  return fmt::format("env LD_PRELOAD={} {}={}", FAILING_WRITES, what, call);
}

TEST(OffloadRun, AFailedWriteOrAKillHarmsNoCheckpoint) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's library must be loaded first";
#endif
  const fs::path want = fresh("want"), folder = scratch("saves"), resumed = scratch("resumed");
  (void)train_quietly(small_model() + Flags{"--save", want.string()});
  int call = 3, resumes = 0;
  bool over = false;  // all writes are before `call`
  for (; !over; call += nightly() ? 3 : 97)
    for (const std::string what : {"FAIL_AT", "KILL_AT"}) {
      for (const fs::path& f : {folder, resumed}) fs::remove_all(f);
      Flags flags = small_model() + offloaded("state,master", "2K") +
                    Flags{"--save", folder.string(), "--save-every", "1", "--save-retry", "0"};
      if (call % 2 == 0) flags.push_back("--async-save");
      const Finished f = run_train_gpt(flags, at_write(what.c_str(), call));
      over = f.exit_code == 0;
      if (over) continue;
      if (what == "FAIL_AT") {
        EXPECT_EQ(f.exit_code, 1) << f.err;
        EXPECT_THAT(f.err, AllOf(HasSubstr("offload folder"), HasSubstr("cannot write"),
                                 HasSubstr("Input/output error")))
            << "write " << call;
      }
      const auto saved = fs::exists(folder) ? list_checkpoints(folder, FileSystem::posix())
                                            : std::vector<CommittedCheckpoint>{};
      for (const auto& c : saved)
        EXPECT_TRUE(verify_checkpoint(folder / c.name).empty()) << what << " " << call << ": " << c.name;
      if (saved.empty()) continue;
      ++resumes;
      (void)train_quietly(small_model() + Flags{"--resume", folder.string(), "--save", resumed.string()});
      EXPECT_TRUE(same_checkpoint(resumed, want)) << what << " " << call;
    }
  EXPECT_GT(resumes, 4) << "runs must get as far as saving, or this shows nothing";
}

}  // namespace
}  // namespace sherd::test
