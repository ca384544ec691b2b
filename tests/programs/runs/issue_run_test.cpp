// The host issues steps ahead of the device: nothing inside a step waits, and the results are the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "programs/runs/outcome.h"

namespace sherd::test {
namespace {

Flags flags_with(const Flags& extra) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  std::filesystem::remove(metrics);
  return Flags{"--data", data.string(), "--metrics", metrics.string(), "--quiet", "--steps", "8",  "--dim",
               "32",     "--layers",    "2",         "--heads",        "2",       "--seq",   "16", "--batch",
               "8",      "--ranks",     "4",         "--seed",         "3"} +
         extra;
}

std::vector<nlohmann::json> steps_of(const Flags& extra) {
  const Finished f = run_train_gpt(flags_with(extra));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.out + f.err, "");
  return read_steps(scratch("metrics"));
}

// Steps 1, 2, ... in this order, each with so many waits.
void expect_waits(const Flags& extra, int64_t steps, int64_t waits) {
  const auto lines = steps_of(extra);
  ASSERT_EQ(lines.size(), static_cast<size_t>(steps)) << show(extra);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1) << show(extra);
    EXPECT_EQ(lines[i]["host_syncs"], waits) << show(extra) << "step " << i + 1;
    EXPECT_GT(lines[i]["step_ms"], 0) << show(extra);
    EXPECT_GE(lines[i]["step_ms"], lines[i]["optim_ms"]) << show(extra);
    EXPECT_GT(lines[i]["peak_bytes"], 0) << show(extra);
  }
}

TEST(IssueRun, ADenseStepWaitsForNothing) {
  for (const Flags& strategy :
       {Flags{"--strategy", "zero3"}, Flags{"--strategy", "zero1"}, Flags{"--replicas", "2"},
        Flags{"--tp", "2"}, Flags{"--grad-accum", "2", "--precision", "bf16"}}) {
    expect_waits(strategy + Flags{"--optimizer", "adamw"}, 8, 0);
    expect_waits(strategy + Flags{"--optimizer", "muon"}, 8, 0);
  }
  // Many chunks of messages, and sums of Gram matrices.
  for (const char* mode : {"owner", "gather"})
    expect_waits({"--optimizer", "muon", "--muon-mode", mode, "--muon-transient", "64K"}, 8, 0);
  expect_waits({"--optimizer", "muon", "--muon-mode", "auto", "--muon-allow-inexact"}, 8, 0);
  expect_waits({"--optimizer", "muon", "--tp", "2", "--muon-tensor", "distributed"}, 8, 0);
}

TEST(IssueRun, ExpertsWaitForTheirCountsInEachBlockAndMicrobatch) {
  expect_waits({"--experts", "4"}, 8, 2);
  expect_waits({"--experts", "4", "--expert-parallel", "2", "--grad-accum", "2"}, 8, 4);
  expect_waits({"--experts", "4", "--expert-parallel", "4", "--optimizer", "muon"}, 8, 2);
}

TEST(IssueRun, EvaluatingAndSavingDoNotMoveIntoTheStep) {
  const auto folder = scratch("saved_by_issue");
  std::filesystem::remove_all(folder);
  const Flags saving = {"--eval-every", "3", "--save-every", "2", "--save", folder.string()};
  expect_waits(saving, 8, 0);
  std::filesystem::remove_all(folder);
  expect_waits(saving + Flags{"--async-save"}, 8, 0);
}

// A background save has the step's state, whatever the host has issued meanwhile.
TEST(IssueRun, SavedBehindTrainingIsExactlyThatStep) {
  const auto folder = scratch("behind");
  for (const char* optimizer : {"adamw", "muon"}) {
    std::filesystem::remove_all(folder);
    const Flags flags = {"--optimizer", optimizer};
    const auto straight = steps_of(flags);
    ASSERT_EQ(straight.size(), 8u);
    const auto saving =
        steps_of(flags + Flags{"--save", folder.string(), "--save-every", "1", "--async-save"});
    ASSERT_EQ(saving.size(), 8u);
    int64_t saved = 0;
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(saving[i]["loss"], straight[i]["loss"]);
      saved += saving[i].contains("save_ms");
    }
    EXPECT_GT(saved, 0) << "the step after a save says what was waited for";
    for (int64_t step = 1; step < 8; ++step) {
      const auto checkpoint = folder / ("step_0000000" + std::to_string(step));
      if (!std::filesystem::exists(checkpoint)) continue;  // another one was under way
      const auto resumed = steps_of(flags + Flags{"--resume", checkpoint.string()});
      ASSERT_EQ(resumed.size(), static_cast<size_t>(8 - step));
      for (size_t i = 0; i < resumed.size(); ++i)
        EXPECT_EQ(resumed[i]["loss"], straight[i + static_cast<size_t>(step)]["loss"])
            << "from step " << step;
    }
  }
}

TEST(IssueRun, StopsAtTheRequestedStep) {
  expect_waits({"--stop-at", "1"}, 1, 0);
  expect_waits({"--stop-at", "5"}, 5, 0);
}

}  // namespace
}  // namespace sherd::test
