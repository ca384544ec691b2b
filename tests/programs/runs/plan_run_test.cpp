// `sherd plan` beside runs of the same flags: collectives of a step, as --metrics counts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "programs/runs/outcome.h"

namespace sherd::test {
namespace {

struct Count {
  int64_t calls = 0, bytes = 0;
};
using Counts = std::map<std::string, Count>;

// Counts the collectives of a step without an evaluation before it.
Counts counted(const Flags& flags) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  const Finished f = run_train_gpt(
      flags + Flags{"--data", data.string(), "--metrics", metrics.string(), "--steps", "3", "--quiet"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  Counts counts;
  const nlohmann::json step = read_steps(metrics).at(1);
  for (const auto& [name, count] : step.at("comm").items())
    counts[name] = {count.at("calls"), count.at("bytes")};
  return counts;
}

Counts planned(const Flags& flags) {
  const auto out = scratch("plan");
  const std::string command =
      fmt::format("{} plan --hardware cpu --json {} >{}", SHERD_TOOL, fmt::join(flags, " "), out.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  Counts counts;
  const auto plan = nlohmann::json::parse(read_file(out));
  for (const auto& c : plan.at("collectives")) {  // by link
    Count& count = counts[c.at("name")];
    count.calls += c.at("calls").get<int64_t>();
    count.bytes += c.at("bytes").get<int64_t>();
  }
  return counts;
}

std::map<std::string, int64_t> calls_of(const Counts& counts) {
  std::map<std::string, int64_t> calls;
  for (const auto& [name, c] : counts) calls[name] = c.calls;
  return calls;
}

TEST(PlanRun, CollectivesAreThoseOfTheMetrics) {
  const Flags model = {"--dim", "32", "--layers", "2", "--heads", "4", "--seq", "16", "--batch", "8"},
              muon = {"--optimizer", "muon"};
  for (const Flags& extra :
       {Flags{}, Flags{"--ranks", "4", "--strategy", "zero0"},
        muon + Flags{"--ranks", "4", "--strategy", "zero1"},
        muon + Flags{"--ranks", "4", "--strategy", "zero2", "--grad-accum", "2"},
        muon + Flags{"--ranks", "4"},
        muon + Flags{"--ranks", "4", "--layout", "whole_param", "--recompute", "blocks"},
        muon + Flags{"--ranks", "4", "--replicas", "2"},
        Flags{"--ranks", "4", "--replicas", "2", "--outer", "optim", "--strategy", "zero2"},
        muon + Flags{"--ranks", "4", "--tp", "2"}, Flags{"--ranks", "8", "--tp", "2", "--replicas", "2"},
        muon + Flags{"--ranks", "4", "--experts", "4"},
        Flags{"--ranks", "4", "--experts", "4", "--expert-parallel", "2", "--moe-aux", "0.01"}})
    EXPECT_EQ(calls_of(planned(model + extra)), calls_of(counted(model + extra))) << show(extra);
}

// Without Muon, all_to_all_v exchanges heads alone, and equal slices are of equal bytes on all ranks.
TEST(PlanRun, ExchangesOfHeadsAreThoseOfTheMetrics) {
  const Flags model = {"--dim", "32", "--layers", "2", "--heads", "4", "--seq", "16", "--batch", "8"};
  for (const Flags& extra :
       {Flags{"--ranks", "4", "--context", "2"},
        Flags{"--ranks", "4", "--context", "4", "--strategy", "zero1"},
        Flags{"--ranks", "8", "--context", "2", "--tp", "2", "--replicas", "2", "--recompute", "blocks"},
        Flags{"--ranks", "4", "--context", "2", "--experts", "4", "--grad-accum", "2"}}) {
    const Counts plan = planned(model + extra), run = counted(model + extra);
    EXPECT_EQ(calls_of(plan), calls_of(run)) << show(extra);
    EXPECT_GT(plan.at("all_to_all_v").bytes, 0) << show(extra);
    EXPECT_EQ(plan.at("all_to_all_v").bytes, run.at("all_to_all_v").bytes) << show(extra);
  }
}

TEST(PlanRun, AutoHasTheBitsOfOptimGradsParams) {
  const Flags model = {"--dim", "32",      "--heads", "4",       "--seq", "16",          "--batch",
                       "8",     "--steps", "3",       "--ranks", "4",     "--optimizer", "muon"};
  for (const auto& [run, choice] :
       {std::pair<Flags, Flags>{},
        {{"--memory-limit", "9M"}, {"--layout", "even_rows", "--hardware", "h100"}},
        {{"--replicas", "2", "--grad-accum", "2"}, {}},
        {{"--tp", "2", "--outer", "optim"}, {"--prefetch", "2"}}}) {
    const Flags flags = model + run;
    EXPECT_TRUE(train_quietly(flags + choice + Flags{"--strategy", "auto"}) == train_quietly(flags))
        << show(flags);
  }
}

// What a search with --keep-bits may choose.
TEST(PlanRun, ReplicasOfGroupsOfAPowerOfTwoKeepTheBits) {
  const Flags model = {"--dim", "32", "--heads", "4", "--seq", "16", "--batch", "12", "--steps", "3"};
  for (const char* const optimizer : {"adamw", "muon"})
    for (const auto& [ranks, all] :
         {std::pair<const char*, std::vector<const char*>>{"4", {"2", "4"}}, {"6", {"3", "6"}}}) {
      const Flags flags = model + Flags{"--optimizer", optimizer, "--ranks", ranks};
      const Outcome want = train_quietly(flags);
      for (const char* const replicas : all)
        for (const char* const outer : {"no_shard", "optim"})
          EXPECT_TRUE(train_quietly(flags + Flags{"--replicas", replicas, "--outer", outer}) == want)
              << show(flags) << replicas << outer;
    }
}

// The copy of a repeated step is in the plan, so that a run with it fits where the choice says.
TEST(PlanRun, AutoPlansARepeatedStep) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt({"--data", data.string(), "--dim", "64", "--ranks", "2", "--strategy", "auto", "--steps",
                     "3", "--memory-limit", "15M", "--verify-step", "3", "--metrics", metrics.string()});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const nlohmann::json step = read_steps(metrics).back();
  EXPECT_NEAR(step.at("peak_bytes").get<double>() / step.at("planned_peak_bytes").get<double>(), 1, 0.01);
}

// Metrics and checkpoints have the choice, in which nothing is auto.
TEST(PlanRun, AutoIsRecordedAsChosen) {
  const auto data = scratch("text"), metrics = scratch("metrics"), folder = fresh("auto");
  write_file(data, golden_text());
  const Flags saved = {"--save", folder.string(), "--data", data.string()},
              resumed = {"--resume", folder.string(), "--data", data.string()};
  const Finished f = run_train_gpt(saved + Flags{"--dim", "32", "--steps", "2", "--ranks", "2", "--strategy",
                                                 "auto", "--metrics", metrics.string()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, testing::StartsWith("strategy: --strategy "));
  const std::string text = read_file(metrics);
  const auto config = nlohmann::json::parse(text.substr(0, text.find('\n'))).at("config");
  EXPECT_THAT(f.out, testing::StartsWith("strategy: --strategy " + config.at("strategy").get<std::string>()));
  EXPECT_EQ(run_train_gpt(resumed + Flags{"--eval-only"}).exit_code, 0);
  EXPECT_EQ(run_train_gpt(resumed + Flags{"--steps", "3", "--quiet"}).out, "");
  const Finished again = run_train_gpt(
      resumed + Flags{"--ranks", "4", "--strategy", "auto", "--recompute", "blocks", "--steps", "4"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, testing::StartsWith("strategy: --strategy "));
}

TEST(PlanRun, AutoThatFitsNowhereNamesTheNearest) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Finished f =
      run_train_gpt({"--data", data.string(), "--ranks", "2", "--strategy", "auto", "--memory-limit", "1M"});
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(std::ranges::count(f.err, '\n'), 1) << f.err;
  EXPECT_THAT(f.err,
              testing::StartsWith(
                  "train_gpt: --strategy auto: no run fits in 99 % of 1.0 MiB of a rank; the nearest takes"));
}

}  // namespace
}  // namespace sherd::test
