// `sherd trace` as a program, on files made by hand.
#include <functional>

#include <nlohmann/json.hpp>

#include "program.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
using ::testing::MatchesRegex;

constexpr int64_t kWall = 1'750'000'000'000'000'000, kWritten = 5'000'000'000;

json record(int64_t number, const std::string& op, int64_t sequence, const std::string& state = "done") {
  return {{"number", number},     {"group", "world"}, {"epoch", 0},
          {"sequence", sequence}, {"op", op},         {"purpose", "unit 'a'"},
          {"dtype", "f32"},       {"elements", 16},   {"bytes", 64},
          {"reduce", "sum"},      {"root", -1},       {"peer", -1},
          {"counts", ""},         {"state", state},   {"issued_ns", 1'000'000'000 * number},
          {"started_ns", 0},      {"finished_ns", 0}, {"started_wall_ns", 0}};
}

/// Returns the file of one of three ranks that called `ops` on the world: the last one waits if it ends with
/// "!".
json file_of(int rank, const std::vector<std::string>& ops) {
  json j = {{"sherd_flight", 1},
            {"rank", rank},
            {"size", 3},
            {"cause", "it failed"},
            {"written_ns", kWritten},
            {"written_wall_ns", kWall + rank},
            {"recorded", ops.size()},
            {"groups",
             {{{"name", "world"}, {"ranks", {0, 1, 2}}, {"epoch", 0}, {"calls", ops.size()}, {"splits", 0}}}},
            {"records", json::array()}};
  for (size_t i = 0; i < ops.size(); ++i) {
    const bool waits = ops[i].ends_with("!");
    j["records"].push_back(record(static_cast<int64_t>(i) + 1,
                                  ops[i].substr(0, ops[i].size() - (waits ? 1 : 0)),
                                  static_cast<int64_t>(i) + 1, waits ? "running" : "done"));
  }
  return j;
}

class Trace : public ::testing::Test {
 protected:
  Finished trace(const std::vector<json>& files, const std::string& flags = "") const {
    std::string arguments = "trace " + flags;
    for (size_t i = 0; i < files.size(); ++i)
      arguments += " " + folder_.write("f" + std::to_string(i) + ".json", files[i].dump());
    return run_sherd(folder_, arguments);
  }
  json first(const std::vector<json>& files) const {
    const Finished f = trace(files, "--json");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return json::parse(f.out)["first_divergence"];
  }
  TemporaryFolder folder_;
};

TEST_F(Trace, OfRanksThatDidTheSameFindsNothing) {
  const std::vector<std::string> ops{"barrier", "all_reduce"};
  const Finished f = trace({file_of(0, ops), file_of(1, ops), file_of(2, ops)});
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_EQ(f.err, "");
  EXPECT_THAT(f.out,
              AllOf(StartsWith("3 of 3 ranks; rank 0 failed with: it failed"), HasSubstr("ranks 0-2 done"),
                    HasSubstr("all_reduce (sum, f32, 16 elements, 64 bytes) for unit 'a'"),
                    HasSubstr("no divergence"), HasSubstr("world #2")));
}

TEST_F(Trace, NamesTheRankThatCalledSomethingElse) {
  const std::vector<json> files{file_of(0, {"barrier", "all_reduce!"}),
                                file_of(1, {"barrier", "all_gather!"}),
                                file_of(2, {"barrier", "all_reduce!"})};
  const json d = first(files);
  EXPECT_EQ(d["kind"], "operation");
  EXPECT_EQ(d["communicator"], "world");
  EXPECT_EQ(d["sequence"], 2);
  EXPECT_EQ(d["ranks"], json({1}));
  EXPECT_THAT(
      trace(files).out,
      HasSubstr(
          "first divergence: world #2: ranks 0, 2 called all_reduce (sum, f32, 16 elements, 64 bytes) for "
          "unit 'a', but rank 1 called all_gather (f32, 16 elements, 64 bytes) for unit 'a'"));
}

TEST_F(Trace, NamesOtherUnitsBytesAndArgumentsInThatOrderOfWeight) {
  const auto changed = [&](const std::function<void(json&)>& change) {
    json odd = file_of(2, {"all_reduce", "all_reduce"});
    change(odd["records"][1]);
    return first({file_of(0, {"all_reduce", "all_reduce"}), file_of(1, {"all_reduce", "all_reduce"}), odd});
  };
  const json unit = changed([](json& r) { r["purpose"] = "unit 'b'", r["elements"] = 8, r["bytes"] = 32; });
  EXPECT_EQ(unit["kind"], "purpose");
  EXPECT_THAT(unit["text"].get<std::string>(),
              AllOf(HasSubstr("unit 'a', but rank 2"), HasSubstr("unit 'b'")));
  const json bytes = changed([](json& r) { r["elements"] = 8, r["bytes"] = 32; });
  EXPECT_EQ(bytes["kind"], "bytes");
  EXPECT_THAT(
      bytes["text"].get<std::string>(),
      AllOf(HasSubstr("64 bytes"), HasSubstr("rank 2 called all_reduce (sum, f32, 8 elements, 32 bytes)")));
  EXPECT_EQ(changed([](json& r) { r["dtype"] = "i32"; })["kind"], "bytes");
  EXPECT_EQ(changed([](json& r) { r["counts"] = "00000000000000aa"; })["kind"], "bytes");
  EXPECT_EQ(changed([](json& r) { r["reduce"] = "max"; })["kind"], "arguments");
  EXPECT_EQ(changed([](json& r) { r["root"] = 1; })["kind"], "arguments");
  EXPECT_TRUE(changed([](json& r) { r["state"] = "queued"; }).is_null());
}

TEST_F(Trace, NamesRanksThatNeverCameWhileOthersWait) {
  const std::vector<json> files{file_of(0, {"barrier", "all_reduce!"}), file_of(1, {"barrier"}),
                                file_of(2, {"barrier", "all_reduce!"})};
  const json d = first(files);
  EXPECT_EQ(d["kind"], "never_came");
  EXPECT_EQ(d["ranks"], json({1}));
  EXPECT_EQ(d["sequence"], 2);
  EXPECT_THAT(trace(files).out, HasSubstr("ranks 0, 2 running, rank 1 never called it"));
  // A rank with dropped operations counts as arrived, or as missing, by its count.
  json forgot = file_of(1, {"barrier"});
  forgot["recorded"] = 300;
  forgot["groups"][0]["calls"] = 2;
  EXPECT_TRUE(first({files[0], forgot, files[2]}).is_null());
  forgot["groups"][0]["calls"] = 1;
  EXPECT_EQ(first({files[0], forgot, files[2]})["kind"], "never_came");
  // No rank waits: ranks' hosts are ahead of each other by chance.
  EXPECT_TRUE(first({file_of(0, {"barrier", "all_reduce"}), files[1]}).is_null());
  json queued = file_of(1, {"barrier", "all_reduce"});
  queued["records"][1]["state"] = "queued";
  EXPECT_EQ(first({files[0], queued, files[2]})["kind"], "queued");
}

TEST_F(Trace, OfDifferentCallsTheFirstInTimeIsNamedBeforeRanksThatDidNotCome) {
  const json d = first({file_of(0, {"barrier", "all_reduce", "all_gather", "barrier!"}),
                        file_of(1, {"barrier", "all_reduce", "broadcast"}),
                        file_of(2, {"barrier", "all_reduce", "all_gather", "all_reduce"})});
  EXPECT_EQ(d["kind"], "operation");
  EXPECT_EQ(d["sequence"], 3);
  EXPECT_EQ(d["ranks"], json({1}));
}

TEST_F(Trace, MatchesMessagesOfTwoRanks) {
  json from = file_of(0, {"send!"}), to = file_of(2, {"recv!"});
  from["records"][0]["peer"] = 2;
  to["records"][0]["peer"] = 0;
  EXPECT_TRUE(first({from, to}).is_null());
  to["records"][0]["bytes"] = 4;
  to["records"][0]["elements"] = 1;
  EXPECT_EQ(first({from, to})["kind"], "bytes");
  const json absent = first({from, file_of(2, {"barrier"})});
  EXPECT_EQ(absent["kind"], "never_came");
  EXPECT_THAT(absent["text"].get<std::string>(),
              HasSubstr("world #1 from rank 0 to rank 2: rank 0 called send"));
}

TEST_F(Trace, DistinguishesCommunicatorsAndNamesMissingFiles) {
  json odd = file_of(1, {"barrier"});
  odd["groups"][0]["ranks"] = {0, 1};
  EXPECT_EQ(first({file_of(0, {"barrier"}), odd})["kind"], "communicator");
  const json j = json::parse(trace({file_of(0, {"barrier"}), file_of(2, {"barrier"})}, "--json").out);
  EXPECT_EQ(j["without_file"], json({1}));
  EXPECT_THAT(j["remarks"][0].get<std::string>(), HasSubstr("the files of rank 1 are missing"));
  json late = file_of(1, {"barrier"});
  late["written_wall_ns"] = kWall + int64_t{7200} * 1'000'000'000;
  EXPECT_THAT(trace({file_of(0, {"barrier"}), late}).out, HasSubstr("different failures"));
}

TEST_F(Trace, ShowsTheLastOperationsAndTakesFolders) {
  const std::vector<std::string> ops(30, "barrier");
  for (int rank = 0; rank < 3; ++rank)
    folder_.write("flights/flight_rank_0000" + std::to_string(rank) + ".json", file_of(rank, ops).dump());
  folder_.write("flights/notes.txt", "not one of them");
  const Finished f = run_sherd(folder_, "trace --last 2 " + folder_ / "flights");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("world #30"), HasSubstr("world #29"), Not(HasSubstr("world #28")),
                           HasSubstr("28 earlier operations are left out; --last 30 shows them")));
}

TEST_F(Trace, NamesThePlaceOfWhatNoRecorderHasWritten) {
  const json good = file_of(0, {"send", "all_reduce"});
  const auto refusal = [&](const std::function<void(json&)>& change) {
    json bad = good;
    bad["records"][0]["peer"] = 1;
    change(bad);
    const Finished f = trace({bad}, "--json");
    EXPECT_EQ(f.exit_code, 1) << bad;
    EXPECT_EQ(f.out, "");
    EXPECT_THAT(f.err, AllOf(StartsWith("sherd trace: "), HasSubstr("f0.json': ")));
    return f.err;
  };
  EXPECT_THAT(refusal([](json& j) { j = json::array(); }), HasSubstr("it holds [] instead of an object"));
  EXPECT_THAT(refusal([](json& j) { j["sherd_flight"] = 2; }), HasSubstr("another version"));
  EXPECT_THAT(refusal([](json& j) { j["rank"] = 3; }),
              HasSubstr("\"rank\" is 3: an integer from 0 to 2 is needed"));
  EXPECT_THAT(refusal([](json& j) { j["size"] = 1e300; }), HasSubstr("\"size\" is 1"));
  EXPECT_THAT(refusal([](json& j) { j["size"] = UINT64_MAX; }), HasSubstr("\"size\" is 1"));
  EXPECT_THAT(refusal([](json& j) { j.erase("cause"); }), HasSubstr("\"cause\" is missing"));
  EXPECT_THAT(refusal([](json& j) { j["cause"] = 3; }), HasSubstr("\"cause\" is 3: a string is needed"));
  EXPECT_THAT(refusal([](json& j) { j["records"] = 3; }), HasSubstr("\"records\" is 3: a list is needed"));
  EXPECT_THAT(refusal([](json& j) {
                j["groups"][0]["ranks"] = {0, 7};
              }),
              HasSubstr("\"groups[0].ranks[1]\" is 7: an integer from 0 to 2 is needed"));
  EXPECT_THAT(refusal([](json& j) { j["groups"][0]["ranks"] = json::array(); }),
              HasSubstr("\"groups[0].ranks\" is []: a list that is not empty is needed"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1] = nullptr; }),
              HasSubstr("\"records[1]\" is null: an object is needed"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1]["group"] = "x\x1b[2J"; }),
              AllOf(HasSubstr("\"records[1].group\" is \"x\\u001b[2J\""), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(refusal([](json& j) { j["records"][0]["peer"] = -1; }),
              HasSubstr("\"records[0].peer\" is -1: an integer from 0 to 2"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1]["root"] = 3; }), HasSubstr("records[1].root"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1]["bytes"] = -1; }), HasSubstr("records[1].bytes"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1]["issued_ns"] = INT64_MAX; }),
              HasSubstr("records[1].issued_ns"));
  EXPECT_THAT(refusal([](json& j) { j["records"][1]["op"] = {1}; }),
              AllOf(HasSubstr("\"records[1].op\" is [1]: a string"), HasSubstr("give a complete file")));
}

TEST_F(Trace, HostileTextsAreErrors) {
  const std::string good = file_of(0, {"barrier", "barrier"}).dump();
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("\0\xff", 2), std::string(100'000, '['),
        R"({"a":)" + std::string(100'000, '[') + "}", good.substr(0, good.size() / 2)}) {
    const Finished f = run_sherd(folder_, "trace " + folder_.write("x.json", text));
    EXPECT_EQ(f.exit_code, 1);
    EXPECT_EQ(f.out, "");
    EXPECT_THAT(f.err, HasSubstr("x.json': "));
  }
  // Every cut and many a changed byte: an error that names the file, or a table.
  for (size_t i = 0; i < good.size(); i += 41) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    const Finished f = run_sherd(folder_, "trace " + folder_.write("x.json", changed));
    EXPECT_TRUE(f.exit_code == 0 || (f.exit_code == 1 && f.err.find("x.json") != f.err.npos))
        << changed << f.err;
  }
}

TEST_F(Trace, ControlCharactersReachNoTerminal) {
  json j = file_of(0, {"barrier", "all_reduce!"});
  j["cause"] = "\x1b[2J";
  for (const char* name : {"op", "purpose", "dtype", "reduce", "state", "counts"})
    j["records"][1][name] = "\x1b[2J";
  j["groups"][0]["name"] = j["records"][0]["group"] = j["records"][1]["group"] = "w\x1b[2J";
  const Finished f = trace({j, file_of(1, {"barrier"})});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("\\u001b[2J"), Not(HasSubstr("\x1b"))));
}

TEST_F(Trace, FilesOfOneRunOnce) {
  json other = file_of(1, {"barrier"});
  other["size"] = 4;
  EXPECT_THAT(trace({file_of(0, {"barrier"}), other}).err, HasSubstr("is of a world of 4 ranks"));
  EXPECT_THAT(trace({file_of(0, {"barrier"}), file_of(0, {"barrier"})}).err, HasSubstr("are both of rank 0"));
  EXPECT_THAT(run_sherd(folder_, "trace " + folder_ / "none.json").err, HasSubstr("No such file"));
  folder_.write("empty/x", "");
  EXPECT_THAT(run_sherd(folder_, "trace " + folder_ / "empty").err, HasSubstr("holds no flight_rank_*.json"));
}

TEST_F(Trace, FilesOfEarlierLaunchesAreLeftOutAndNamed) {
  const auto of_launch = [](const std::string& launch, int64_t later_ns, json j) {
    j["launch"] = launch;
    j["written_wall_ns"] = kWall + later_ns;
    return j;
  };
  // Rank 2 was killed in the second launch and wrote nothing; its file of the first one says other things.
  const json first_2 = of_launch("a", 0, file_of(2, {"all_gather!"}));
  const std::vector<json> files{of_launch("b", 9, file_of(0, {"barrier", "all_reduce!"})), first_2,
                                of_launch("b", 8, file_of(1, {"barrier", "all_reduce!"}))};
  const Finished f = trace(files);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out,
              AllOf(StartsWith("2 of 3 ranks"), Not(HasSubstr("all_gather")), HasSubstr("no divergence"),
                    HasSubstr("note: left out, because it is of an earlier launch than the others: "),
                    HasSubstr("f1.json"), HasSubstr("the files of rank 2 are missing")));
  const json j = json::parse(trace(files, "--json").out);
  EXPECT_EQ(j["left_out"], json({folder_ / "f1.json"}));
  EXPECT_EQ(j["without_file"], json({2}));
  EXPECT_EQ(j["files"].size(), 2u);

  // A launch of fewer ranks in the folder of one of more; and files that do not say of which launch they are.
  json before = file_of(2, {"barrier"});
  before["size"] = 4;
  EXPECT_THAT(trace({files[0], before}).out, HasSubstr("left out"));
  before["written_wall_ns"] = kWall + 100;
  EXPECT_THAT(trace({files[0], before}).out, StartsWith("1 of 4 ranks"));
  // In one launch that cannot be.
  EXPECT_THAT(trace({files[0], of_launch("b", 0, before)}).err, HasSubstr("is of a world of 4 ranks"));
  EXPECT_THAT(trace({files[0], files[0]}).err, HasSubstr("are both of rank 0"));
  json odd = files[0];
  odd["launch"] = 3;
  EXPECT_THAT(trace({odd}).err, HasSubstr("\"launch\" is 3"));
}

// Two streams of the first rank; of two steps the mean counts.
TEST_F(Trace, LaysTheTimesOfTracesBesideEachOther) {
  const auto trace_of = [](int steps, double product_us) {
    json events = json::array();
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}, {"args", {{"name", "compute"}}}});
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 1}, {"args", {{"name", "gather"}}}});
    for (int i = 0; i < steps; ++i) {
      events.push_back(
          {{"name", "step " + std::to_string(i)}, {"ph", "i"}, {"ts", 0}, {"pid", 0}, {"tid", 0}});
      events.push_back(
          {{"name", "gemm"}, {"ph", "X"}, {"ts", 0}, {"dur", product_us}, {"pid", 0}, {"tid", 0}});
      events.push_back(
          {{"name", "all_gather"}, {"ph", "X"}, {"ts", 0}, {"dur", 500}, {"pid", 0}, {"tid", 1}});
      events.push_back({{"name", "gemm"}, {"ph", "X"}, {"ts", 0}, {"dur", 9e6}, {"pid", 1}, {"tid", 0}});
    }
    return json{{"traceEvents", events}};
  };
  const Finished f = trace({trace_of(1, 2000), trace_of(2, 2500)}, "--times");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(MatchesRegex("(.|\n)*compute +gemm +2[.]000 +2[.]500\n(.|\n)*"),
                           MatchesRegex("(.|\n)*gather +all_gather +0[.]500 +0[.]500\n(.|\n)*"),
                           MatchesRegex("(.|\n)*sum of all streams +2[.]500 +3[.]000\n")));
  const Finished other = trace({json{{"a", 1}}}, "--times");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err,
              HasSubstr("is not a trace; name files of sherd plan --trace and of train_gpt --trace"));
}

TEST_F(Trace, WrongFlagsExitWith2AndHelpExplains) {
  for (const char* arguments : {"trace", "trace --last 0 x", "trace --last many x", "trace --frob x"})
    EXPECT_EQ(run_sherd(folder_, arguments).exit_code, 2) << arguments;
  const Finished f = run_sherd(folder_, "trace --help");
  EXPECT_EQ(f.exit_code, 0);
  for (const char* part :
       {"For example", "first divergence: world #9", "--flight-recorder", "never_came", "Exit codes"})
    EXPECT_THAT(f.out, HasSubstr(part));
}

}  // namespace
}  // namespace sherd::tools
