// `sherd plan` beside runs of the same flags: collectives of a step, as --metrics counts them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "programs/runs/outcome.h"

namespace sherd::test {
namespace {

using Calls = std::map<std::string, int64_t>;

// Counts the calls of a step without an evaluation before it.
Calls counted(const Flags& flags) {
  const auto data = scratch("text"), metrics = scratch("metrics");
  write_file(data, golden_text());
  const Finished f = run_train_gpt(
      flags + Flags{"--data", data.string(), "--metrics", metrics.string(), "--steps", "3", "--quiet"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  Calls calls;
  for (const auto& [name, count] : read_steps(metrics).at(1).at("comm").items())
    calls[name] = count.at("calls");
  return calls;
}

Calls planned(const Flags& flags) {
  const auto out = scratch("plan");
  const std::string command =
      fmt::format("{} plan --hardware cpu --json {} >{}", SHERD_TOOL, fmt::join(flags, " "), out.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  Calls calls;
  for (const auto& c : nlohmann::json::parse(read_file(out)).at("collectives"))
    calls[c.at("name")] += c.at("calls").get<int64_t>();  // by link
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
    EXPECT_EQ(planned(model + extra), counted(model + extra)) << show(extra);
}

}  // namespace
}  // namespace sherd::test
