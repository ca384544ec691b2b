// Runs that are asked to stop, by a signal or by the clock, and runs that check themselves.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/train/guards/stop_request.h>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

fs::path fresh(const std::string& name) {
  const fs::path path = scratch(name);
  fs::remove_all(path);
  return path;
}

Flags stop_flags(const Flags& extra) {
  const fs::path data = scratch("text");
  write_file(data, golden_text());
  return Flags{"--data", data.string(),   "--dim",   "16",      "--layers", "1",       "--heads",
               "2",      "--seq",         "16",      "--batch", "8",        "--quiet", "--measure-peak",
               "false",  "--lr-schedule", "constant"} +
         extra;
}

/// train_gpt while it runs.
class Running {
 public:
  /// @param output a descriptor for its stdout; -1: this process's.
  explicit Running(const Flags& flags, int output = -1) {
    Flags all = Flags{TRAIN_GPT, "--threads", TEST_THREADS} + flags;
    std::vector<char*> argv;
    for (auto& a : all) argv.push_back(a.data());
    argv.push_back(nullptr);
    const std::string err = scratch("running_stderr").string();
    child_ = ::fork();
    if (child_ != 0) return;
    // When the tests run in the background, the shell may have had them ignored.
    for (const int number : stop_signals()) ::signal(number, SIG_DFL);
    if (std::freopen(err.c_str(), "w", stderr) == nullptr) ::_exit(126);
    if (output >= 0) ::dup2(output, STDOUT_FILENO);
    ::execv(TRAIN_GPT, argv.data());
    ::_exit(127);
  }
  ~Running() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void signal(int number) { ::kill(child_, number); }
  /// Waits until the file has so many lines, at most 60 s.
  bool wrote(const fs::path& file, int lines) {
    for (int i = 0; i < 60'000; ++i) {
      const std::string text = fs::exists(file) ? read_file(file) : "";
      if (std::count(text.begin(), text.end(), '\n') >= lines) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  /// Waits for the end, at most 60 s. @param again a signal that is sent every 400 ms until then; 0: none.
  Finished finish(int again = 0) {
    Finished f;
    int status = 0;
    for (int i = 1; i <= 60'000; ++i) {
      if (::waitpid(child_, &status, WNOHANG) == child_) {
        child_ = 0;
        f.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        f.err = read_file(scratch("running_stderr"));
        return f;
      }
      std::this_thread::sleep_for(1ms);
      if (again != 0 && i % 400 == 0) signal(again);
    }
    f.err = "it did not end";
    return f;
  }

 private:
  pid_t child_ = 0;
};

/// `latest`, and the last line of the metrics, are of the same step: that step.
int64_t step_of_the_end(const fs::path& folder, const fs::path& metrics) {
  std::string latest = read_file(folder / "latest");
  while (!latest.empty() && latest.back() == '\n') latest.pop_back();
  const int64_t step = read_steps(metrics).back()["step"];
  EXPECT_EQ(latest, checkpoint_name(step));
  return step;
}

// Stopped at random instants and resumed until it is done, a run has the bits of an uninterrupted one.
// Where it ends is known only once it was stopped: a loaded machine lets it do many steps before it receives
// a signal.
TEST(StopRun, PreemptedAgainAndAgainTheRunIsBitIdentical) {
  const Flags arrangements[] = {{"--ranks", "4", "--strategy", "zero3", "--optimizer", "muon"},
                                {"--ranks", "4", "--replicas", "2", "--grad-accum", "2", "--async-save"}};
  constexpr int kStops = 5;
  std::mt19937 random(20261123);
  for (const Flags& arrangement : arrangements) {
    const fs::path folder = fresh("preempted"), metrics = fresh("preempted.jsonl"),
                   weights = fresh("weights.a"), whole_metrics = fresh("whole.jsonl"),
                   whole_weights = fresh("weights.b");
    const Flags flags = stop_flags(arrangement + Flags{"--steps", "1000000"});
    const Flags outputs = {"--metrics", metrics.string(),   "--save",        folder.string(), "--save-every",
                           "70",        "--export-weights", weights.string()};
    int64_t step = 0;
    for (int run = 0; run < kStops; ++run) {
      // Each run begins with a line that is not a step.
      const int before = run == 0 ? 0 : static_cast<int>(read_steps(metrics).size()) + run;
      Running training(flags + outputs + (run == 0 ? Flags{} : Flags{"--resume", folder.string()}));
      // A step further at least, and then at any time: in a step, between two, or while a checkpoint is
      // written.
      ASSERT_TRUE(training.wrote(metrics, before + 2));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      training.signal(run % 2 == 0 ? SIGTERM : SIGINT);
      const Finished f = training.finish();
      ASSERT_EQ(f.exit_code, 0) << f.err;
      const int64_t now = step_of_the_end(folder, metrics);
      EXPECT_GT(now, step);
      step = now;
      EXPECT_FALSE(fs::exists(weights)) << "a run that is stopped leaves the rest to the one that ends";
    }
    const Flags to_the_end = {"--stop-at", std::to_string(step + 10)};
    const Finished last = run_train_gpt(flags + outputs + to_the_end + Flags{"--resume", folder.string()});
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(step_of_the_end(folder, metrics), step + 10);
    const Finished whole =
        run_train_gpt(flags + to_the_end +
                      Flags{"--metrics", whole_metrics.string(), "--export-weights", whole_weights.string()});
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const auto got = read_steps(metrics), want = read_steps(whole_metrics);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]["step"], want[i]["step"]);
      EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << i + 1;
      EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << i + 1;
    }
    EXPECT_TRUE(read_file(weights) == read_file(whole_weights)) << show(arrangement);
  }
}

// Terminals and batch systems send them.
TEST(StopRun, EachStopSignalSaves) {
  for (const int number : stop_signals()) {
    const fs::path folder = fresh("signalled"), metrics = fresh("signalled.jsonl");
    Running training(stop_flags(
        {"--ranks", "2", "--steps", "1000000", "--metrics", metrics.string(), "--save", folder.string()}));
    ASSERT_TRUE(training.wrote(metrics, 3));
    training.signal(number);
    const Finished f = training.finish();
    ASSERT_EQ(f.exit_code, 0) << number << f.err;
    EXPECT_GT(step_of_the_end(folder, metrics), 0);
  }
}

// `tee` that Ctrl-C has ended, too, or that was killed long before.
TEST(StopRun, ALogWithoutAReaderLosesLinesAndNotTheRun) {
  const fs::path folder = fresh("unread"), metrics = fresh("unread.jsonl");
  Flags flags = stop_flags(
      {"--ranks", "2", "--steps", "1000000", "--metrics", metrics.string(), "--save", folder.string()});
  std::erase(flags, "--quiet");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Running training(flags, ends[1]);
  ASSERT_TRUE(training.wrote(metrics, 3));
  for (const int end : ends) ::close(end);
  ASSERT_TRUE(training.wrote(metrics, static_cast<int>(read_steps(metrics).size()) + 20));
  training.signal(SIGINT);
  const Finished f = training.finish();
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_GT(step_of_the_end(folder, metrics), 0);
}

// Programs that train nothing end with their reader, as `head` expects.
TEST(StopRun, HelpWithoutAReaderEndsQuietly) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  Running help({"--help-all"}, ends[1]);
  ::close(ends[1]);
  const Finished f = help.finish();
  EXPECT_EQ(f.exit_code, 1000 + SIGPIPE);
  EXPECT_EQ(f.err, "");
}

TEST(StopRun, WithoutSaveItStopsAndSaysThatNothingWasKept) {
  const fs::path metrics = fresh("stopped.jsonl");
  Running training(stop_flags({"--ranks", "2", "--steps", "1000000", "--metrics", metrics.string()}));
  ASSERT_TRUE(training.wrote(metrics, 3));
  training.signal(SIGUSR1);
  const Finished f = training.finish();
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_THAT(f.err, AllOf(HasSubstr("SIGUSR1 came: stopped after step"), HasSubstr("nothing was saved")));
}

// It is saved, so that a run that has nothing left to train can do the rest.
TEST(StopRun, AskedToStopInTheLastStepItLeavesTheRestToAResumedRun) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const fs::path folder = fresh("last"), metrics = fresh("last.jsonl"), weights = fresh("last.weights");
    const Flags outputs = {"--save",         folder.string(),    "--metrics",
                           metrics.string(), "--export-weights", weights.string()};
    Running training(stop_flags({"--ranks", "2", "--steps", "1", "--batch", "4096", "--grad-accum", "2048"}) +
                     outputs);
    ASSERT_TRUE(training.wrote(metrics, 1));
    training.signal(SIGUSR1);
    const Finished f = training.finish();
    // On a loaded machine the step may be over before the signal comes.
    if (f.exit_code == 1000 + SIGUSR1 || fs::exists(weights)) continue;
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(step_of_the_end(folder, metrics), 1);
    const Finished again = run_train_gpt(Flags{"--resume", folder.string()} + outputs);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.out, AllOf(HasSubstr("nothing is left to train"), HasSubstr("weights written to")));
    EXPECT_TRUE(fs::exists(weights));
    return;
  }
  ADD_FAILURE() << "no signal came within the step";
}

TEST(StopRun, ASecondSignalEndsItAtOnceAndTheGraceIsKept) {
  // A step of too many microbatches to wait for its end: the save cannot begin.
  const fs::path folder = fresh("slow");
  const Flags slow = stop_flags({"--ranks", "2", "--steps", "1000000", "--batch", "262144", "--grad-accum",
                                 "131072", "--save", folder.string()});
  {
    Running training(slow + Flags{"--metrics", fresh("slow.jsonl").string()});
    ASSERT_TRUE(training.wrote(scratch("slow.jsonl"), 1));
    std::this_thread::sleep_for(300ms);
    training.signal(SIGINT);
    // A process that got no processor meanwhile takes two signals for one: further ones follow until it ends.
    const Finished f = training.finish(SIGTERM);
    EXPECT_EQ(f.exit_code, 128 + SIGTERM) << f.err;
    EXPECT_THAT(f.err, HasSubstr("a second signal"));
  }
  {
    Running training(slow + Flags{"--grace", "0.3", "--metrics", fresh("slow.jsonl").string()});
    ASSERT_TRUE(training.wrote(scratch("slow.jsonl"), 1));
    std::this_thread::sleep_for(300ms);
    training.signal(SIGTERM);
    const Finished f = training.finish();
    EXPECT_EQ(f.exit_code, 1) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr("train_gpt: SIGTERM came"), HasSubstr("the grace is over")));
  }
}

// training_loop_test.cpp shows without a clock that it leaves time for the save.
TEST(StopRun, TheLimitOfTimeStopsItSaved) {
  const fs::path folder = fresh("limited"), metrics = fresh("limited.jsonl");
  const auto begin = std::chrono::steady_clock::now();
  const Finished f =
      run_train_gpt(stop_flags({"--ranks", "2", "--steps", "1000000", "--max-wall", "2s", "--save",
                                folder.string(), "--save-every", "20", "--metrics", metrics.string()}));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_GT(step_of_the_end(folder, metrics), 0);
  // No upper bound: the machine may be loaded. It stops long before a million steps, and not at the first.
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 100ms);
  const Finished tiny = run_train_gpt(stop_flags({"--ranks", "2", "--steps", "1000", "--max-wall", "00:00:01",
                                                  "--resume", folder.string(), "--steps", "2000000"}));
  EXPECT_EQ(tiny.exit_code, 0) << tiny.err;
  EXPECT_THAT(tiny.err, AllOf(HasSubstr("the limit of 1.0s is near: stopped after step"),
                              HasSubstr("nothing was saved")));
}

// A step done twice leaves a run as it is, whatever the step consists of.
TEST(StopRun, AVerifiedStepChangesNoBit) {
  for (const Flags& flags :
       {Flags{"--ranks", "4", "--strategy", "zero2", "--optimizer", "muon", "--grad-accum", "2"},
        Flags{"--ranks", "4", "--strategy", "zero0", "--precision", "bf16"},
        Flags{"--ranks", "4", "--strategy", "zero1", "--layout", "whole_param", "--optimizer", "muon"},
        Flags{"--ranks", "4", "--replicas", "2", "--outer", "optim"},
        Flags{"--ranks", "4", "--experts", "4", "--expert-parallel", "2"},
        Flags{"--ranks", "4", "--tp", "2", "--check-replicas", "3"}}) {
    Flags model = stop_flags(flags + Flags{"--steps", "7"});
    std::erase(model, "--quiet");
    const fs::path metrics[] = {fresh("once.jsonl"), fresh("twice.jsonl")},
                   weights[] = {fresh("once.weights"), fresh("twice.weights")};
    for (const int twice : {0, 1}) {
      const Finished f = run_train_gpt(
          model + Flags{"--metrics", metrics[twice].string(), "--export-weights", weights[twice].string()} +
          (twice != 0 ? Flags{"--verify-step", "4"} : Flags{}));
      ASSERT_EQ(f.exit_code, 0) << show(flags) << f.err;
      if (twice != 0) {
        EXPECT_THAT(f.out, AllOf(HasSubstr("step 4 done twice from the same state"),
                                 HasSubstr("MiB of host memory")));
      }
    }
    const auto once = read_steps(metrics[0]), twice = read_steps(metrics[1]);
    ASSERT_EQ(once.size(), 7u);
    ASSERT_EQ(twice.size(), 7u);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_EQ(once[i]["step"], twice[i]["step"]);
      EXPECT_EQ(once[i]["loss"], twice[i]["loss"]) << show(flags) << i + 1;
      EXPECT_EQ(once[i]["grad_norm"], twice[i]["grad_norm"]) << show(flags) << i + 1;
    }
    EXPECT_TRUE(read_file(weights[0]) == read_file(weights[1])) << show(flags);
  }
}

// Data that changes its nature in the middle: its loss jumps.
TEST(StopRun, ASpikeIsReportedWithWhereItCameFrom) {
  const fs::path metrics = fresh("spike.jsonl"), tokens = scratch("spike.bin");
  std::string bytes;
  const auto add = [&](int token) {
    bytes.push_back(static_cast<char>(token & 0xff));
    bytes.push_back('\0');
  };
  for (int i = 0; i < 16 * 8 * 60 + 1; ++i) add(i % 2 == 0 ? 'a' : 'b');
  for (int i = 0; i < 16 * 8; ++i) add(200 + i * 7 % 50);
  for (int i = 0; i < 16 * 8 * 10; ++i) add(i % 2 == 0 ? 'a' : 'b');
  write_file(tokens, bytes);
  Flags flags = stop_flags({"--ranks", "2", "--tokens", tokens.string(), "--token-format", "u16", "--order",
                            "sequential", "--steps", "65", "--lr", "0.02", "--metrics", metrics.string()});
  flags.erase(flags.begin(), flags.begin() + 2);  // --data
  const Finished f = run_train_gpt(flags);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("step 61: the loss"), HasSubstr("deviations above"),
                           HasSubstr("sequences 480 to 487"), Not(HasSubstr("step 60:"))));
  const auto steps = read_steps(metrics);
  ASSERT_EQ(steps.size(), 65u);
  EXPECT_EQ(steps[60]["loss_spike"], true);
  EXPECT_FALSE(steps[59].contains("loss_spike"));
  fs::remove(metrics);
  EXPECT_EQ(run_train_gpt(flags + Flags{"--loss-spike", "0"}).err, "");
}

TEST(StopRun, GuardsThatCannotWorkAreRefused) {
  const auto refused = [](const Flags& flags, const std::string& text) {
    const Finished f = run_train_gpt(flags);
    EXPECT_EQ(f.exit_code, 2) << show(flags);
    EXPECT_THAT(f.err, HasSubstr(text));
  };
  refused({"--verify-step", "101"}, "--verify-step 101: the run ends with step 100");
  refused({"--ranks", "4", "--check-replicas", "5"}, "no two ranks hold the same weights");
  for (const char* time : {"90", "3h50", "0s", "1.5h"})
    refused({"--max-wall", time}, std::string("--max-wall ") + time + ": must be a time greater than 0");
  refused({"--grace", "-1"}, "--grace");
  const Finished late = run_train_gpt(stop_flags({"--steps", "2", "--save", fresh("late").string()}));
  ASSERT_EQ(late.exit_code, 0);
  const Finished after =
      run_train_gpt(stop_flags({"--steps", "3", "--resume", scratch("late").string(), "--verify-step", "1"}));
  EXPECT_EQ(after.exit_code, 0);
  EXPECT_THAT(after.err,
              HasSubstr("--verify-step 1: this run begins with step 3, so that nothing is verified"));
}

}  // namespace
}  // namespace sherd::test
