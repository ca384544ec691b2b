// `sherd plan`: published figures, the JSON's fields, refused input.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/plan_flags.h"
#include "program.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanProgram : public ::testing::Test {
 protected:
  Finished plan(const std::string& arguments) const { return run_sherd(folder_, "plan " + arguments); }
  json plan_of(const std::string& arguments) const {
    const Finished f = plan(arguments + " --json");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return json::parse(f.out);
  }
  TemporaryFolder folder_;
};

TEST(PlannedPresets, HaveThePublishedNumberOfParameters) {
  const std::tuple<const char*, double, double> published[] = {
      {"deepseek-v3", 671e9, 37e9}, {"kimi-k2", 1.026e12, 32.9e9}, {"gpt-oss-120b", 116.83e9, 5.13e9}};
  for (const auto& [name, all, active] : published) {
    const ParameterCount count = count_parameters(planned_shape(name));
    EXPECT_NEAR(static_cast<double>(count.all) / all, 1, .002) << name;
    EXPECT_NEAR(static_cast<double>(count.active) / active, 1, .15) << name;  // with or without embeddings
  }
}

// Tokens/s and TFLOP/s per GPU as published together: Megatron Bridge's and NeMo's tables of 2025 and 2026.
TEST(PlannedFlops, AgreeWithPublishedPairs) {
  const std::tuple<const char*, int64_t, double, double> pairs[] = {
      {"llama3-8b", 8192, 14451, 744},  {"llama3-70b", 8192, 5248, 2348},    {"llama3-70b", 8192, 4224, 1892},
      {"llama3-70b", 8192, 866.8, 389}, {"qwen3-30b-a3b", 4096, 12040, 277}, {"deepseek-v3", 4096, 1002, 250},
      {"deepseek-v3", 4096, 865, 216},  {"kimi-k2", 4096, 924, 189}};
  for (const auto& [name, seq, tokens, tflops] : pairs) {
    const std::string sequence = std::to_string(seq);
    const PlanRequest r = parse_plan({.run = {"--preset", name, "--seq", sequence}});
    const double flops = r.shape ? training_flops(token_work(*r.shape), seq)
                                 : training_flops(train_gpt::token_work(r.config), seq);
    EXPECT_NEAR(flops * tokens / (tflops * 1e12), 1, .005) << name << " " << tokens;
  }
}

TEST_F(PlanProgram, PrintsTheFieldsThatScriptsRead) {
  const json p = plan_of("--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --optimizer muon --hardware cpu");
  EXPECT_EQ(p.at("parameters"), p.at("active_parameters"));
  EXPECT_GT(p.at("flops_per_token"), 0);
  EXPECT_EQ(p.at("ranks").size(), 4);
  for (const json& r : p.at("ranks")) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : r.at("by_class").items())
      sum += name == "slack" ? 0 : bytes.get<int64_t>();
    EXPECT_EQ(sum, r.at("peak_bytes"));
  }
  for (const json& c : p.at("collectives"))
    EXPECT_TRUE(c.contains("name") && c.at("link") == "host" && c.at("calls") > 0 && c.contains("bytes"));
  EXPECT_GT(p.at("newton_schulz_flops"), 0);
  const json& ms = p.at("step_ms");
  EXPECT_NEAR(ms.at("total"),
              ms.at("compute").get<double>() + ms.at("exposed_communication").get<double>() +
                  ms.at("optimizer").get<double>(),
              1e-9);
  EXPECT_GT(p.at("tokens_per_s"), 0);
  EXPECT_GT(p.at("mfu"), 0);
  EXPECT_EQ(p.at("fits"), true);
}

TEST_F(PlanProgram, ComparesCandidatesTheFastestThatFitsFirst) {
  const json all =
      plan_of("--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --optimizer muon --hardware cpu --compare")
          .at("candidates");
  EXPECT_EQ(all.size(), 36);
  EXPECT_EQ(all[0].at("why"), "fastest that fits");
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_GE(all[i].at("step_ms").at("total"), all[0].at("step_ms").at("total"));
    EXPECT_TRUE(all[i].contains("strategy") && all[i].contains("layout") && all[i].contains("muon_mode"));
    EXPECT_NE(all[i].at("why"), "");
  }
}

// Muon's plan for 70,000 matrices and 256 ranks takes seconds: it is left out where the rest does not fit.
TEST_F(PlanProgram, ComparesWithoutTheOptimizerWhatDoesNotFit) {
  const json p = plan_of("--preset kimi-k2 --world 256 --hardware b200 --optimizer muon --compare");
  const json& all = p.at("candidates");
  EXPECT_EQ(all.size(), 36);
  for (const json& c : all) {
    EXPECT_EQ(c.at("fits"), false);
    EXPECT_EQ(c.at("without_optimizer"), true);
    EXPECT_EQ(c.at("step_ms").at("optimizer"), 0);
    EXPECT_THAT(c.at("why"), HasSubstr("does not fit: without the optimizer "));
  }
  EXPECT_GT(p.at("step_ms").at("optimizer"), 0) << "the run's own plan is complete";
}

TEST_F(PlanProgram, SweepsOverRanksAndDrawsThem) {
  const Finished f = plan("--preset llama3.2-1b --seq 512 --hardware a100 --sweep world=8..64 --svg " +
                          (folder_ / "sweep.svg"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  for (const char* world : {"  8 ", " 16 ", " 32 ", " 64 "}) EXPECT_THAT(f.out, HasSubstr(world));
  std::ifstream svg(folder_ / "sweep.svg");
  std::stringstream text;
  text << svg.rdbuf();
  EXPECT_THAT(text.str(), AllOf(HasSubstr("<svg"), HasSubstr("memory per rank, GiB"), HasSubstr("</svg>")));
}

TEST_F(PlanProgram, WritesAPredictedTrace) {
  const Finished f = plan("--world 2 --dim 64 --heads 4 --hardware cpu --trace " + (folder_ / "trace.json"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  std::ifstream in(folder_ / "trace.json");
  EXPECT_GT(json::parse(in).at("traceEvents").size(), 100);
}

TEST_F(PlanProgram, RefusesWhatCannotBePlannedInOneLineWithTheRemedy) {
  const std::pair<const char*, const char*> wrong[] = {
      {"--world 6 --replicas 4", "--replicas 4: must divide --ranks 6"},
      {"--preset kimi-k2 --world 256 --pipeline 7", "--pipeline 7: must divide --world 256"},
      {"--preset kimi-k2 --world 256 --expert-parallel 3", "--expert-parallel 3: must divide"},
      {"--preset llama9", "no published shape"},
      {"--hardware h500", "hardware 'h500' is unknown"},
      {"--preset gpt2-124m --pipeline 2", "leave it out"},
      {"--world 4 --sweep 8..16", "write world=FIRST..LAST"},
      {"--world 4 --no-such-flag 1", "no-such-flag"},
      {"--svg picture.svg", "--sweep"}};
  for (const auto& [flags, message] : wrong) {
    const Finished f = plan(flags);
    EXPECT_EQ(f.exit_code, 2) << flags;
    EXPECT_THAT(f.err, HasSubstr(message)) << flags;
    EXPECT_EQ(f.out, "") << flags;
  }
}

TEST_F(PlanProgram, RefusesAnUnknownKeyOfAProfile) {
  std::string text = to_text(hardware_profile("h100"));
  text.replace(text.find("\"peak_flops\""), 12, "\"peak\"");
  const Finished f = plan("--hardware " + folder_.write("mine.json", text));
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, AllOf(HasSubstr("mine.json"), HasSubstr("\"peak_flops\" is missing")));
}

}  // namespace
}  // namespace sherd::tools
