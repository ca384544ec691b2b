// `sherd layout` as a program: exit codes, streams, and its JSON.
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "program.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;

/// Runs `sherd layout` on a file with this text.
class Layout : public ::testing::Test {
 protected:
  Finished run(const std::string& arguments) const { return run_sherd(folder_, arguments); }
  Finished layout(const std::string& model, const std::string& flags) const {
    return run("layout --params " + folder_.write("model.json", model) + " " + flags);
  }
  TemporaryFolder folder_;
};

constexpr const char* kModel = R"([
  {"name": "embed", "shape": [11, 6], "dtype": "bf16", "optimizer": "adamw", "unit": "root", "tied": true},
  {"name": "norm", "shape": [6], "dtype": "fp32", "optimizer": "adamw", "unit": "b"},
  {"name": "qkv", "shape": [18, 6], "dtype": "bf16", "optimizer": "muon", "unit": "b", "blocks": [6, 6, 6]},
  {"name": "o\u00e9\"", "shape": [6, 7], "dtype": "bf16", "optimizer": "muon", "unit": "b"},
  {"name": "experts", "shape": [2, 6, 7], "dtype": "bf16", "optimizer": "muon", "unit": "b"}])";

TEST_F(Layout, JsonHoldsEveryElementOnceAndThePlan) {
  for (const std::string policy : {"ragged", "even_rows", "whole_param", "whole_param:size_match"}) {
    for (const std::string world : {"1", "3", "16"}) {
      const Finished f = layout(kModel, "--json --align-elements 8 --policy " + policy + " --world " + world);
      ASSERT_EQ(f.exit_code, 0) << f.err;
      EXPECT_EQ(f.err, "");
      const json j = json::parse(f.out);
      std::map<std::string, int64_t> next;  // per parameter: elements seen, which come in order
      double cost = 0;
      for (auto& b : j.at("buffers")) {
        int64_t held = 0, size = 0;
        for (auto& k : b.at("buckets")) {
          EXPECT_EQ(k.at("start"), size);
          size = k.at("end");
          EXPECT_EQ(size - k.at("start").get<int64_t>(), k.at("slice").get<int64_t>() * std::stoi(world));
        }
        EXPECT_EQ(b.at("elements"), size);
        for (auto& p : b.at("params")) {
          EXPECT_LE(p.at("end"), size);
          EXPECT_LT(p.at("bucket"), b.at("buckets").size());
        }
        for (auto& r : b.at("ranks")) {
          int64_t on_rank = 0;
          for (auto& piece : r.at("pieces")) {
            const int64_t begin = piece.at("elements")[0], end = piece.at("elements")[1];
            EXPECT_EQ(begin, next[piece.at("name")]) << piece;
            next[piece.at("name")] = end;
            on_rank += end - begin;
          }
          EXPECT_EQ(r.at("elements"), on_rank);
          held += on_rank;
          cost += r.at("cost").get<double>();
        }
        EXPECT_EQ(held + b.at("padding").get<int64_t>(), size);
      }
      EXPECT_EQ(next, (std::map<std::string, int64_t>{
                          {"embed", 66}, {"norm", 6}, {"qkv", 108}, {"oé\"", 42}, {"experts", 84}}));
      ASSERT_EQ(j.at("plan").size(), 6u);
      EXPECT_EQ(j.at("plan")[1].at("name"), "qkv");
      EXPECT_EQ(j.at("plan")[1].at("block"), "1");
      EXPECT_EQ(j.at("plan")[5].at("block"), "[1]");
      EXPECT_EQ(cost, 5 * 36 * (3 * 18.0 + 3 * 20.0));
      EXPECT_EQ(j.at("redundancy"), 1);
      EXPECT_GE(j.at("imbalance"), 1);
      EXPECT_EQ(j.at("fingerprint").get<std::string>().size(), 16u);
    }
  }
}

TEST_F(Layout, OfSoapBalancesStateAgainstFlops) {
  // Four matrices of one size on two ranks; the state of the long ones is 1.75 times that of the square ones.
  const std::string model =
      R"([{"name": "a", "shape": [64, 256], "dtype": "fp32", "optimizer": "muon", "unit": "b"},
    {"name": "b", "shape": [128, 128], "dtype": "fp32", "optimizer": "muon", "unit": "b"},
    {"name": "c", "shape": [256, 64], "dtype": "fp32", "optimizer": "muon", "unit": "b"},
    {"name": "d", "shape": [128, 128], "dtype": "fp32", "optimizer": "muon", "unit": "b"},
    {"name": "norm", "shape": [10], "dtype": "fp32", "optimizer": "adamw", "unit": "b"}])";
  for (const std::string balance : {"0", "0.5", "1"}) {
    const Finished f = layout(model, "--json --world 2 --optimizer soap --whole-balance " + balance);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    const json j = json::parse(f.out);
    // 8mn + 8m^2 + 8n^2 bytes, eigenvalues m and n, and a count, f32.
    const auto state = [](int64_t m, int64_t n) { return 8 * (m * n + m * m + n * n) + 4 * (m + n + 1); };
    int64_t sum = 0, most = 0;
    for (auto& r : j.at("plan_ranks")) {
      sum += r.at("state_bytes").get<int64_t>();
      most = std::max(most, r.at("state_bytes").get<int64_t>());
    }
    EXPECT_EQ(sum, 2 * state(64, 256) + 2 * state(128, 128));
    EXPECT_DOUBLE_EQ(
        j.at("state_imbalance").get<double>(),
        static_cast<double>(most) / std::max(static_cast<double>(sum) / 2, double(state(64, 256))));
    EXPECT_LE(j.at("state_imbalance").get<double>(), 1.01) << "one long and one square matrix each";
  }
  const Finished summary = layout(model, "--world 2 --optimizer soap");
  EXPECT_THAT(summary.out, AllOf(HasSubstr("SOAP plan: 4 matrices"), HasSubstr("SOAP's FLOPs"),
                                 HasSubstr("of it, SOAP's"), HasSubstr("state bytes 1.0")));
  EXPECT_THAT(layout(model, "--world 2 --whole-balance 0.9").err, HasSubstr("--whole-balance has no effect"));
  EXPECT_EQ(layout(model, "--world 2 --optimizer soap --whole-balance 2").exit_code, 2);
  EXPECT_EQ(layout(model, "--world 2 --optimizer adam").exit_code, 2);
}

TEST_F(Layout, RowsOfPiecesAreNullWhereARowIsCut) {
  const json j = json::parse(layout(kModel, "--json --world 2 --policy ragged").out);
  const json embed = j.at("buffers")[0];
  EXPECT_EQ(embed.at("ranks")[0].at("pieces")[0],
            json::parse(R"({"name": "embed", "elements": [0, 64], "rows": null})"));
  const json even = json::parse(layout(kModel, "--json --world 2 --policy even_rows").out).at("buffers")[0];
  EXPECT_EQ(even.at("ranks")[1].at("pieces")[0],
            json::parse(R"({"name": "embed", "elements": [36, 66], "rows": [6, 5]})"));
}

TEST_F(Layout, TheSummaryIsHumanReadable) {
  const Finished f = layout(kModel, "--world 2");
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_THAT(f.out, StartsWith("ragged over 2 ranks"));
  EXPECT_EQ(f.err, "");
}

TEST_F(Layout, WrongFlagsExitWith2) {
  for (const char* arguments :
       {"", "frobnicate", "layout", "layout --params x.json", "layout --params x.json --world 0",
        "layout --params x.json --world -4", "layout --params x.json --world 2x",
        "layout --params x.json --world 1e3", "layout --params x.json --world 99999999999999999999",
        "layout --params x.json --world 2 --policy fifo",
        "layout --params x.json --world 2 --align-elements 0",
        "layout --params x.json --world 2 --bucket-elements 0", "layout --params x.json --world 2 --frob",
        "layout --params x.json --world 2 --world 3"}) {
    const Finished f = run(arguments);
    EXPECT_EQ(f.exit_code, 2) << arguments;
    EXPECT_EQ(f.out, "") << arguments;
    EXPECT_THAT(f.err, StartsWith("sherd: ")) << arguments;
  }
  EXPECT_THAT(run("layout --params x.json --world 2 --policy fifo").err,
              HasSubstr("use ragged, even_rows, whole_param, whole_param:lpt"));
  EXPECT_THAT(run("layout --params x.json --world 0").err, HasSubstr("from 1 to"));
  EXPECT_THAT(run("frobnicate").err,
              HasSubstr("'frobnicate': neither a command nor the value of a flag\nsherd --help"));
  EXPECT_THAT(
      run("run --nprocs 2 --np 3 -- true").err,
      HasSubstr(
          "--nprocs: unknown flag; did you mean --nproc?\n'2': neither a command nor the value of a "
          "flag\n--np: unknown flag\n'3': neither a command nor the value of a flag\nsherd run --help"));
  EXPECT_THAT(run("").err, HasSubstr("A command is required"));
}

TEST_F(Layout, WrongContentExitsWith1AndPrintsNoJson) {
  const char* const huge =
      R"([{"name": "x", "shape": [4000000000, 1000000000], "dtype": "fp32", "optimizer": "adamw", "unit": "u"}])";
  for (const char* model : {"", "[", "[]", "[[[[", "{}", R"([{"name": "x"}])", huge}) {
    const Finished f = layout(model, "--world 2 --json");
    EXPECT_EQ(f.exit_code, 1) << model;
    EXPECT_EQ(f.out, "") << model;
    EXPECT_THAT(
        f.err, AllOf(StartsWith("sherd layout: "), HasSubstr("model.json"), Not(HasSubstr("json.exception"))))
        << model;
  }
  EXPECT_EQ(run("layout --params " + (folder_ / "none.json") + " --world 2").exit_code, 1);
}

TEST_F(Layout, APlanNamesTheFlagOrTheFileThatCannotBeUsed) {
  const Finished none = run("plan --steps 0");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--steps 0: a plan is of a training step"));
  const std::string config =
      folder_.write("config.json", R"({"model_type": "mixtral", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 60000})");
  const Finished large = run("plan --model " + config);
  EXPECT_EQ(large.exit_code, 2);
  EXPECT_THAT(large.err, HasSubstr("config.json': experts 60000: must be from 0 to 1024"));
  folder_.write("config.json", R"({"a":)");
  EXPECT_THAT(
      run("plan --model " + config).err,
      AllOf(HasSubstr("config.json': it is not valid JSON: parse error"), Not(HasSubstr("json.exception"))));
  // Muon has all parameters of this list: the rule of AdamW would decide about none.
  const std::string list = folder_.write(
      "muon.json",
      R"([{"name": "a.0.w", "shape": [8, 8], "dtype": "fp32", "optimizer": "muon", "unit": "a"}])");
  EXPECT_EQ(run("plan --params " + list).exit_code, 0);
}

TEST_F(Layout, OutputThatCannotBeWrittenExitsWith1) {
  const std::string model = folder_.write("model.json", kModel);
  const std::string command =
      std::string(SHERD_TOOL) + " layout --json --world 2 --params " + model + " >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

TEST_F(Layout, HelpDescribesTheInputAndTheJson) {
  const Finished f = run("layout --help");
  EXPECT_EQ(f.exit_code, 0);
  for (const char* part : {"\"optimizer\": \"muon\"", "blocks", "even_rows: in the full buffer", "imbalance",
                           "4 bytes, fp32", "in buckets that span units", "the least carried cost"})
    EXPECT_THAT(f.out, HasSubstr(part));
}

TEST_F(Layout, AFlagWithoutEffectIsMentionedOnStderr) {
  const Finished f = layout(kModel, "--json --world 2 --bucket-elements 9");
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_TRUE(json::accept(f.out)) << f.out;
  EXPECT_THAT(f.err, HasSubstr("no effect under ragged"));
}

}  // namespace
}  // namespace sherd::tools
