// Whatever goes wrong ends every rank, with one message and the right exit code. A rank that waits in vain
// for another one shows, however loaded the machine is: run_train_gpt() ends a run long before --comm-timeout
// does.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using ::testing::AnyOf;
constexpr int kFailure = 1, kUsage = 2;

void expect_failure(const Flags& flags, int code, const std::vector<std::string>& words) {
  const Finished f = run_train_gpt(flags);
  std::string line;
  for (auto& a : flags) line += a + " ";
  EXPECT_EQ(f.exit_code, code) << line << "\n" << f.err;
  for (auto& w : words) EXPECT_THAT(f.err, HasSubstr(w)) << line;
  EXPECT_EQ(f.err.rfind("train_gpt: ", 0), 0u) << f.err;
  size_t messages = 0;
  for (size_t at = f.err.find("train_gpt: "); at != std::string::npos; at = f.err.find("train_gpt: ", at + 1))
    ++messages;
  EXPECT_EQ(messages, 1u) << f.err;
  if (code == kUsage) {
    EXPECT_EQ(f.out, "") << "arguments are checked before anything is printed";
  }
}

Flags small(const Flags& extra) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  Flags flags = {"--data",   data.string(), "--ranks", "4", "--steps", "3",  "--dim",   "16",
                 "--layers", "2",           "--heads", "2", "--seq",   "16", "--batch", "8"};
  flags.insert(flags.end(), extra.begin(), extra.end());
  return flags;
}

TEST(FailureRun, WrongFlagsAreUsageErrors) {
  expect_failure(small({"--no-such-flag"}), kUsage, {"--no-such-flag"});
  expect_failure(small({"--strategy", "zero4"}), kUsage, {"zero4", "optim_grads_params"});
  expect_failure(small({"--replicas", "3"}), kUsage, {"--replicas", "3"});
  expect_failure(small({"--tp", "4"}), kUsage, {"--tp 4: must divide --heads 2"});
  expect_failure(small({"--heads", "3"}), kUsage, {"--heads", "3", "16"});
  expect_failure(small({"--batch", "6"}), kUsage, {"--batch", "6"});
  expect_failure(small({"--grad-accum", "3"}), kUsage, {"--grad-accum"});
  expect_failure(small({"--lr", "fast"}), kUsage, {"--lr", "fast"});
  expect_failure(small({"--ranks", "0", "--heads", "5", "--lr", "-1"}), kUsage,
                 {"--ranks", "--heads", "--lr"});
}

TEST(FailureRun, MissingCudaIsOneLine) {
  const auto metrics = scratch("kept");
  write_file(metrics, "of an earlier run\n");
  const Flags flags = small({"--device", "cuda", "--metrics", metrics.string()});
  const Finished f = run_train_gpt(flags);
  if (f.exit_code == 0) GTEST_SKIP() << "there is a GPU";
  const bool not_built = f.err.find("this build") != std::string::npos;
  expect_failure(flags, not_built ? kUsage : kFailure, {"CUDA"});
  EXPECT_THAT(f.err, AnyOf(HasSubstr("no CUDA device"), HasSubstr("this build of sherd has no CUDA")));
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  EXPECT_EQ(f.out, "");
  EXPECT_EQ(read_file(metrics), "of an earlier run\n");
  expect_failure(small({"--comm", "nccl"}), kUsage, {"--comm nccl", "--device cuda"});
}

TEST(FailureRun, MissingFilesAndTooLittleDataFail) {
  expect_failure(small({"--data", "/nowhere/at/all"}), kFailure, {"/nowhere/at/all"});
  expect_failure(small({"--config", "/nowhere/config"}), kUsage, {"--config: cannot open '/nowhere/config'"});
  expect_failure(small({"--init-weights", "/nowhere/w.safetensors"}), kFailure, {"/nowhere/w.safetensors"});
  expect_failure(small({"--export-weights", "/nowhere/w.safetensors"}), kFailure, {"/nowhere/w.safetensors"});
  expect_failure(small({"--export-weights", "/nowhere/folder/"}), kFailure, {"/nowhere/folder/"});
  expect_failure(small({"--export-weights", "/"}), kFailure, {"cannot write"});
  expect_failure(small({"--export-weights", scratch("").string()}), kFailure, {"is not empty"});
  expect_failure(small({"--metrics", "/nowhere/m"}), kFailure, {"/nowhere/m"});
  expect_failure(small({"--loss-svg", "/nowhere/l", "--trace", "/nowhere/t", "--timeline", "/dev/null"}),
                 kFailure, {"/nowhere/l", "/nowhere/t", "/dev/null"});
  const auto tiny = scratch("tiny");
  write_file(tiny, "short");
  expect_failure(small({"--data", tiny.string()}), kFailure, {"5 bytes"});
  write_file(tiny,
             "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 9\n");
  expect_failure(small({"--data", tiny.string(), "--seq", "8"}), kFailure,
                 {"tiny' is a git-lfs pointer, not the file itself; run `git lfs pull` in its repository"});
}

TEST(FailureRun, WeightsOfAnotherModelAreRefusedNamingEverything) {
  const auto weights = scratch("other.safetensors");
  ASSERT_EQ(run_train_gpt(
                small({"--steps", "0", "--layers", "1", "--dim", "8", "--export-weights", weights.string()}))
                .exit_code,
            0);
  expect_failure(
      small({"--init-weights", weights.string()}), kFailure,
      {"missing in it: ", "blocks.1.qkv.weight", "these are tensors of another model: build that model",
       "'tok.weight' has shape [256, 8] where the run has [256, 16]"});
}

TEST(FailureRun, DamagedWeightsAreRefused) {
  const auto weights = scratch("torn.safetensors");
  ASSERT_EQ(run_train_gpt(small({"--steps", "0", "--export-weights", weights.string()})).exit_code, 0);
  const std::string bytes = read_file(weights);
  write_file(weights, bytes.substr(0, bytes.size() - 100));
  expect_failure(small({"--init-weights", weights.string()}), kFailure, {"torn.safetensors"});
}

TEST(FailureRun, AMemoryLimitStopsZero0ButNotZero3) {
  const Flags model =
      small({"--dim", "128", "--layers", "4", "--steps", "2", "--seq", "8", "--batch", "4", "--quiet"});
  // 0.87 M parameters: 13.2 MiB replicated with AdamW; zero3 over 4 ranks stays under 9.
  auto with = [&](const char* strategy) {
    Flags f = model;
    for (const char* a : {"--memory-limit", "10M", "--strategy", strategy}) f.push_back(a);
    return f;
  };
  const Finished fits = run_train_gpt(with("zero3"));
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  expect_failure(with("zero0"), kFailure, {"over the memory limit of 10485760 bytes", "gradients"});
}

int exit_code_of(const char* program, const Flags& flags, const std::string& streams) {
  std::string command = "exec " + std::string(program);
  for (auto& a : flags) command += " '" + a + "'";
  const int status = std::system((command + " " + streams).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(FailureRun, LeavesTheLastCollectivesOfEveryRankWhereAskedTo) {
  const auto flights = scratch("flights");
  // Enough for the weights, too little for the optimizer's states.
  expect_failure(
      small({"--dim", "128", "--layers", "4", "--steps", "2", "--seq", "8", "--batch", "4", "--quiet",
             "--strategy", "zero0", "--memory-limit", "10M", "--flight-recorder", flights.string()}),
      kFailure, {"over the memory limit"});
  const auto table = scratch("table");
  EXPECT_EQ(exit_code_of(SHERD_TOOL, {"trace", flights.string()}, ">" + table.string()), 0);
  // The order of the reports decides which rank is named first, and whether by its own message.
  EXPECT_THAT(read_file(table), AllOf(HasSubstr("4 of 4 ranks"), HasSubstr(" failed")));
  expect_failure(small({"--flight-recorder", "/dev/null/x"}), kFailure,
                 {"--flight-recorder /dev/null/x: cannot be made"});
}

TEST(FailureRun, OutputThatDoesNotGetThroughIsAFailure) {
  const std::string full = ">/dev/full 2>" + scratch("full").string();  // a device that is always full
  for (const Flags& flags :
       {Flags{"--help"}, Flags{"--help-all"}, Flags{"--version"}, small({"--steps", "1"})}) {
    EXPECT_EQ(exit_code_of(TRAIN_GPT, flags, full), kFailure);
    EXPECT_THAT(read_file(scratch("full")), HasSubstr("train_gpt: the output could not be written"));
  }
  EXPECT_EQ(exit_code_of(TRAIN_GPT, small({"--steps", "1", "--quiet"}), full), 0);
}

TEST(FailureRun, MessagesThatDoNotGetThroughEndNoProgram) {
  // The one warns of steps that are skipped and ends well, the other ends with a message.
  const Flags skips = small({"--lr", "1e6", "--steps", "4", "--max-skipped-steps", "0", "--quiet"});
  const Flags diverges = small(
      {"--lr", "1e6", "--weight-decay", "1e6", "--skip-non-finite", "false", "--steps", "4", "--quiet"});
  const Finished heard = run_train_gpt(skips);
  EXPECT_THAT(heard.err, HasSubstr("was skipped on all ranks"));
  for (const char* streams : {">/dev/full 2>&1", ">&- 2>&-"}) {
    EXPECT_EQ(exit_code_of(TRAIN_GPT, {"--help"}, streams), kFailure) << streams;
    EXPECT_EQ(exit_code_of(TRAIN_GPT, {"--no-such-flag"}, streams), kUsage) << streams;
    for (const auto& [flags, code] : {std::pair{skips, heard.exit_code}, std::pair{diverges, kFailure}}) {
      const auto metrics = scratch("silent");
      std::filesystem::remove(metrics);
      EXPECT_EQ(exit_code_of(TRAIN_GPT, flags + Flags{"--metrics", metrics.string()}, streams), code)
          << streams;
      EXPECT_EQ(read_steps(metrics).size(), 4u) << streams << ": every line of the file is one of its own";
    }
    EXPECT_EQ(exit_code_of(SHERD_TOOL, {"layout"}, streams), kUsage) << streams;
    EXPECT_EQ(exit_code_of(SHERD_TOOL, {"ckpt", "verify", "/nowhere"}, streams), kFailure) << streams;
  }
}

TEST(FailureRun, AProgramStartedThroughTheDynamicLoaderStarts) {
  const char* loader = "/lib64/ld-linux-x86-64.so.2";
  if (!std::filesystem::exists(loader)) GTEST_SKIP() << "no " << loader;
  const std::string out = scratch("loaded").string();
  // Without these variables the program starts itself once more.
  const Flags flags = {"-u", "GOMP_SPINCOUNT", "-u", "OMP_WAIT_POLICY", loader, TRAIN_GPT, "--version"};
  EXPECT_EQ(exit_code_of("env", flags, ">" + out), 0);
  EXPECT_THAT(read_file(out), HasSubstr("train_gpt "));
}

TEST(FailureRun, ARunThatEndsNotFiniteFailsAndItsGoodCheckpointStays) {
  const auto folder = scratch("diverged");
  const Finished f = run_train_gpt(
      small({"--steps", "5", "--lr", "1e6", "--weight-decay", "1e6", "--skip-non-finite", "false", "--quiet",
             "--save", folder.string(), "--save-every", "1", "--keep", "1"}));
  EXPECT_EQ(f.exit_code, kFailure) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("training ended, but"), HasSubstr("weights are non-finite")));
  EXPECT_TRUE(std::filesystem::exists(folder / "step_00000001"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step_00000005"));
  EXPECT_THAT(f.err, HasSubstr("step 5: no checkpoint was saved: weights are non-finite: "));
  const Finished again = run_train_gpt(small({"--steps", "1", "--resume", folder.string()}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("step_00000001: 1 steps are done"));
}

TEST(FailureRun, QuietLeavesTheSamplesTextAlone) {
  const Finished f = run_train_gpt(small({"--steps", "1", "--quiet", "--prompt", "a\nb", "--sample", "5"}));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.out.size(), 8u) << f.out;
  EXPECT_THAT(f.out, testing::StartsWith("a\nb"));
}

TEST(FailureRun, ThreadsSpinForABoundedTimeUnlessTheEnvironmentSaysOtherwise) {
  const auto shown = [](const std::string& environment) {
    const auto err = scratch("openmp");
    EXPECT_EQ(std::system((environment + " OMP_DISPLAY_ENV=verbose " + TRAIN_GPT +
                           " --version >/dev/null 2>" + err.string())
                              .c_str()),
              0);
    return read_file(err);
  };
  EXPECT_THAT(shown("env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY"), HasSubstr("GOMP_SPINCOUNT = '1000'"));
  EXPECT_THAT(shown("env GOMP_SPINCOUNT=77"), HasSubstr("GOMP_SPINCOUNT = '77'"));
}

TEST(FailureRun, AThreadThatCannotBeStartedIsExplained) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may start any number of threads";
  std::string command = "ulimit -u 1; exec env GOMP_SPINCOUNT=1000 " + std::string(TRAIN_GPT);
  for (auto& a : small({"--threads", "1"})) command += " " + a;
  const auto err = scratch("threads");
  EXPECT_NE(std::system(("bash -c '" + command + "' >/dev/null 2>" + err.string()).c_str()), 0);
  EXPECT_THAT(read_file(err), AllOf(HasSubstr("cannot start a thread while "), HasSubstr("ulimit -u")));
}

TEST(FailureRun, AWriteBeyondTheLimitOnFileSizesFailsAsOnAFullDisk) {
  const auto err = scratch("limited"), save = fresh("limited_run");
  std::string command = "ulimit -f 20; " + std::string(TRAIN_GPT);  // in blocks of 1024 bytes
  for (auto& a : small({"--threads", "1", "--save", save.string(), "--save-every", "2", "--save-retry", "0"}))
    command += " " + a;
  const int status = std::system(("bash -c '" + command + "' >/dev/null 2>" + err.string()).c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 128, kFailure);
  EXPECT_THAT(read_file(err),
              AllOf(HasSubstr("step 2: no checkpoint was saved: "), HasSubstr("File too large"),
                    HasSubstr("training ended, but its last checkpoint is missing")));
}

TEST(FailureRun, HelpIsNotAnError) {
  const Finished f = run_train_gpt({"--help-all"});
  EXPECT_EQ(f.exit_code, 0);
  for (const char* flag : {"--data",         "--ranks",
                           "--strategy",     "--replicas",
                           "--tp",           "--outer",
                           "--layout",       "--reshard-after-forward",
                           "--prefetch",     "--optimizer",
                           "--experts",      "--expert-parallel",
                           "--expert-top-k", "--moe-aux",
                           "--dim",          "--layers",
                           "--heads",        "--seq",
                           "--batch",        "--grad-accum",
                           "--steps",        "--lr",
                           "--lr-schedule",  "--warmup",
                           "--weight-decay", "--grad-clip",
                           "--seed",         "--precision",
                           "--metrics",      "--export-weights",
                           "--init-weights", "--eval-every",
                           "--sample",       "--quiet",
                           "--config",       "--memory-limit",
                           "--max-queued",   "--bucket-size"})
    EXPECT_THAT(f.out, HasSubstr(flag));
}

}  // namespace
}  // namespace sherd::test
