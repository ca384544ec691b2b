// Files of --trace and --timeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <tuple>

#include <sherd/train/data/data.h>
#include <sherd/train/report/trace_output.h>

#include "temporary_folder.h"
#include "train/report/xml_check.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Run : testing::Test {
  /// Trains on `ranks` ranks; what rank 0 says.
  std::vector<std::string> train(int ranks) {
    config.ranks = ranks;
    config.dim = 32;
    config.layers = 3;
    config.heads = 2;
    config.seq = 32;
    config.batch = 2 * ranks;
    config.data = folder.write("data.txt", std::string(20'000, 'x'));
    const auto windows =
        std::make_shared<const sherd::TokenWindows>(sherd::ByteData::load(config.data), config.seq);
    std::vector<std::string> said;
    sherd::launch(ranks, {.device = {.kernels = sherd::parse_cpu_kernels(TEST_KERNELS)}},
                  [&](sherd::RankContext& rank) {
                    sherd::TraceOutput trace(rank, trace_options(config));
                    Trainer trainer(rank, config, windows);
                    while (trainer.step() < config.last_step()) {
                      trace.before_step(trainer.step() + 1);
                      trainer.train_step();
                    }
                    const auto lines = trace.write();
                    if (rank.world->rank() == 0) {
                      said = lines;
                    } else {
                      EXPECT_TRUE(lines.empty());
                    }
                  });
    return said;
  }
  const TemporaryFolder folder;
  TrainConfig config;
};

TEST_F(Run, WritesBothFilesOfTheStepsInQuestion) {
  config.steps = 5;
  config.trace = (folder.path() / "t.json").string();
  config.timeline = (folder.path() / "t.svg").string();
  const std::vector<std::string> lines = train(2);
  ASSERT_EQ(lines.size(), 10u) << "a table of 8 lines, and one for each file";
  EXPECT_THAT(lines[0], testing::MatchesRegex("a step of [0-9.]+ ms, by the compute streams' time:"));
  const json trace = json::parse(read_bytes(config.trace));
  std::map<int, std::map<std::string, int>> work;  // by rank
  std::vector<std::string> marks;
  for (const json& e : trace["traceEvents"]) {
    if (e["ph"] == "X") ++work[e["pid"]][e["name"]];
    if (e["ph"] == "i") marks.push_back(e["name"]);
  }
  EXPECT_EQ(marks, (std::vector<std::string>{"step 3", "step 4"}));
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[0], work[1]);
  // zero3, two steps: root and three blocks are gathered forward, the blocks again backward, all are reduced.
  EXPECT_EQ(work[0]["reduce_scatter"], 2 * 4);
  EXPECT_EQ(work[0]["all_gather"], 2 * (4 + 3));
  EXPECT_EQ(work[0]["attention_backward"], 2 * 3);
  EXPECT_EQ(trace["otherData"]["left_out"], 0);

  const std::string svg = read_bytes(config.timeline);
  EXPECT_EQ(sherd::test::xml_problem(svg), "");
  EXPECT_THAT(svg, HasSubstr("steps 3 to 4"));
  EXPECT_THAT(svg, HasSubstr(">rank 1<"));
}

// An operation is sorted by the kind with which it was queued, whatever its name.
TEST_F(Run, OptimizersOperationsAreNoOtherKernels) {
  config.steps = 4;
  config.trace = (folder.path() / "t.json").string();
  const std::set<std::string> kinds = {"optimizer", "squares", "orthogonalize", "copy",
                                       "gather",    "reduce",  "exchange",      "update"};
  for (const auto& [optimizer, operation, kind] :
       std::vector<std::tuple<OptimizerWord, std::string, std::string>>{
           {OptimizerWord::soap, "soap_step", "optimizer"},
           {OptimizerWord::normuon, "row_scales", "optimizer"},
           {OptimizerWord::muon, "orthogonalize", "orthogonalize"},
           {OptimizerWord::adamw, "adamw", "optimizer"}}) {
    config.optimizer = optimizer;
    config.qk_clip = optimizer == OptimizerWord::adamw ? 0 : 1e-3;
    train(2);
    std::map<std::string, std::string> found;  // kinds of operations of the compute streams during updates
    std::map<std::pair<int, int>, bool> updating;
    const json trace = json::parse(read_bytes(config.trace));
    for (const json& e : trace["traceEvents"]) {
      if (e["ph"] != "X") continue;
      bool& on = updating[{e["pid"], e["tid"]}];
      if (e["name"] == "update begins") on = true;
      if (on) found[e["name"]] = e["cat"];
      if (e["name"] == "update ends") on = false;
    }
    for (const auto& [name, cat] : found)
      EXPECT_TRUE(kinds.contains(cat)) << word_of(optimizer) << ": " << name << " is " << cat;
    EXPECT_EQ(found[operation], kind) << word_of(optimizer);
    if (config.qk_clip > 0) {
      EXPECT_EQ(found["scale_heads"], "optimizer") << word_of(optimizer);
    }
  }
}

TEST_F(Run, WithoutFlagsNothingIsRecorded) {
  config.steps = 1;
  EXPECT_TRUE(train(1).empty());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t.json"));
}

}  // namespace
}  // namespace train_gpt
