// The ring of a flight recorder, sums of lateness, and the clauses of reports.

#include <nlohmann/json.hpp>

#include <sherd/comm/launcher.h>
#include <sherd/comm/watch/arrival_board.h>
#include <sherd/comm/watch/flight_recorder.h>
#include <sherd/comm/watch/reports.h>

#include "comm/integer_tensors.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::comm {
namespace {

using nlohmann::json;
using testing::MatchesRegex;
using State = FlightRecord::State;

Call reduction(int64_t sequence, int64_t elements = 4, const std::string& purpose = "") {
  Call call{.op = "all_reduce", .sequence = sequence, .dtype = DType::f32, .elements = elements};
  call.purpose = Purpose(purpose);
  return call;
}

class Ring : public testing::Test {
 protected:
  json written(FlightRecorder& recorder) const {
    recorder.write("the \"cause\" \xff");
    return json::parse(read_bytes(folder_ / FlightRecorder::file_name(5)));
  }
  FlightRecorderOptions options(int64_t operations) const {
    return {.operations = operations, .folder = folder_.path().string()};
  }
  TemporaryFolder folder_;
  std::shared_ptr<GroupLabel> world_ = std::make_shared<GroupLabel>("world", std::vector<int>{0, 5});
};

TEST_F(Ring, KeepsTheLastOperationsAndDropsTheRest) {
  FlightRecorder recorder(options(4), 5, 6);
  recorder.add(world_);
  const int64_t first = recorder.issue(world_, reduction(1), 0, -1);
  for (int i = 2; i <= 7; ++i) recorder.issue(world_, reduction(i), 0, -1);
  recorder.start(first);  // whose place another has by now
  recorder.end(first, State::done);
  recorder.run(7, [] {});
  world_->calls = 7;
  const json j = written(recorder);
  EXPECT_EQ(j["sherd_flight"], 1);
  EXPECT_EQ(j["rank"], 5);
  EXPECT_EQ(j["size"], 6);
  EXPECT_EQ(j["recorded"], 7);
  EXPECT_THAT(j["cause"].get<std::string>(), HasSubstr("the \"cause\" "));
  EXPECT_EQ(j["groups"],
            json::parse(R"([{"name": "world", "ranks": [0, 5], "epoch": 0, "calls": 7, "splits": 0}])"));
  ASSERT_EQ(j["records"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(j["records"][i]["sequence"], 4 + i);
    EXPECT_EQ(j["records"][i]["state"], i < 3 ? "queued" : "done");
  }
  const json& last = j["records"][3];
  EXPECT_LE(last["issued_ns"], last["started_ns"]);
  EXPECT_LE(last["started_ns"], last["finished_ns"]);
  EXPECT_GT(last["started_wall_ns"], 1'700'000'000'000'000'000);
}

TEST_F(Ring, KnowsWhatWasLastAndWhatIsQueued) {
  FlightRecorder recorder({.operations = 8}, 5, 6);
  EXPECT_EQ(recorder.last(), "");
  const int64_t a = recorder.issue(world_, reduction(1, 4, "the weights"), 0, -1);
  EXPECT_EQ(recorder.last(), "none yet, with 1 call of its queued behind other work");
  recorder.start(a);
  EXPECT_THAT(recorder.last(),
              MatchesRegex("all_reduce #1 .sum, f32, 4 elements, 16 bytes. for the weights of 'world', "
                           "under way for [0-9]+ ms"));
  recorder.end(a, State::done);
  recorder.issue(world_, reduction(2), 0, -1);
  EXPECT_THAT(
      recorder.last("before it left"),
      MatchesRegex("all_reduce #1.*of 'world', done [0-9]+ ms before it left, with 1 call of its queued.*"));
  FlightRecorder none({.operations = 0}, 5, 6);
  none.run(none.issue(world_, reduction(1), 0, -1), [] {});
  EXPECT_EQ(none.last(), "");
}

TEST_F(Ring, WorkThatThrowsHasFailedAndItsErrorKeepsItsType) {
  FlightRecorder recorder(options(4), 5, 6);
  const auto work = [&](auto error) {
    recorder.run(recorder.issue(world_, reduction(1), 0, -1), [&] { throw error; });
  };
  EXPECT_THROW(work(std::runtime_error("x")), std::runtime_error);
  EXPECT_THAT(message_of<PeerFailure>([&] { work(PeerFailure("peer", 3)); }),
              AllOf(HasSubstr("peer; what rank 5 did last is in "), HasSubstr("flight_rank_00005.json"),
                    HasSubstr("sherd trace ")));
  EXPECT_THAT(message_of<CommError>([&] { work(CommError("own", 5)); }), HasSubstr("own; what rank 5"));
  const json j = json::parse(read_bytes(folder_ / FlightRecorder::file_name(5)));
  EXPECT_EQ(j["cause"], "peer") << "the first failure's file stays";
  EXPECT_EQ(j["records"][0]["state"], "failed");
  FlightRecorder silent({.operations = 4}, 5, 6);
  EXPECT_EQ(message_of<CommError>([&] { silent.run(0, [] { throw CommError("own"); }); }), "own");
}

TEST_F(Ring, WritesAgainAfterARecovery) {
  FlightRecorder recorder(options(4), 5, 6);
  recorder.issue(world_, reduction(1), 0, -1);
  EXPECT_EQ(written(recorder)["recorded"], 1);
  recorder.issue(world_, reduction(2), 0, -1);
  EXPECT_EQ(written(recorder)["recorded"], 1) << "of the same failure";
  recorder.issue(world_, reduction(1), 1, -1);
  EXPECT_EQ(written(recorder)["recorded"], 3);
}

TEST_F(Ring, HoldsLivingCommunicatorsAndThoseOfRecords) {
  FlightRecorder recorder(options(2), 5, 6);
  recorder.add(world_);
  for (int i = 0; i < 100; ++i) {
    const auto clone = std::make_shared<GroupLabel>("world/" + std::to_string(i) + ".0", std::vector<int>{5});
    recorder.add(clone);
    recorder.issue(clone, {.op = "split", .sequence = 1}, 0, -1);
  }
  const json j = written(recorder);
  ASSERT_EQ(j["groups"].size(), 3u);
  EXPECT_EQ(j["groups"][1]["name"], "world/98.0");
  EXPECT_EQ(j["records"][1]["group"], "world/99.0");
}

TEST_F(Ring, RecordsWhatEveryVerbDoes) {
  LaunchOptions options;
  options.flight_recorder.folder = folder_.path().string();
  const auto launch_of = [&](int rank) {
    return json::parse(read_bytes(folder_ / FlightRecorder::file_name(rank)))["launch"].get<std::string>();
  };
  EXPECT_THROW(launch(2, options,
                      [](RankContext& c) {
                        Stream& s = c.device->compute();
                        const auto tensor = [&](int64_t n) {
                          return test::make_tensor(*c.device, DType::i32, test::poison(n));
                        };
                        const std::vector<int64_t> counts{1, 3};
                        const int rank = c.world->rank();
                        c.world->all_gather_v(s, tensor(4), counts,
                                              tensor(counts[static_cast<size_t>(rank)]));
                        c.world->broadcast(s, tensor(2), 1);
                        const auto clone = c.world->clone();
                        if (rank == 0) clone->send(s, tensor(3), 1);
                        if (rank == 1) clone->recv(s, tensor(3), 0);
                        s.synchronize();
                        // The rank whose file is read fails, so that the launch does not end before it has
                        // its data.
                        if (rank == 1) throw std::runtime_error("the end");
                      }),
               std::runtime_error);
  const json j = json::parse(read_bytes(folder_ / FlightRecorder::file_name(1)));
  ASSERT_EQ(j["records"].size(), 4u);
  EXPECT_EQ(j["records"][0]["op"], "all_gather_v");
  EXPECT_EQ(j["records"][0]["bytes"], 16);
  EXPECT_EQ(j["records"][0]["counts"].get<std::string>().size(), 16u);
  EXPECT_EQ(j["records"][1]["root"], 1);
  EXPECT_EQ(j["records"][1]["counts"], "");
  EXPECT_EQ(j["records"][2]["op"], "split");
  EXPECT_EQ(j["records"][3]["op"], "recv");
  EXPECT_EQ(j["records"][3]["peer"], 0);
  EXPECT_EQ(j["records"][3]["group"], "world/1.0");
  for (const json& r : j["records"]) EXPECT_EQ(r["state"], "done") << r;

  const std::string name = launch_of(0);
  EXPECT_EQ(name.size(), 16u);
  EXPECT_EQ(launch_of(1), name);
  const auto fail = [](RankContext& c) {
    if (c.world->rank() == 1) throw std::runtime_error("the end");
  };
  EXPECT_THROW(launch(2, options, fail), std::runtime_error);
  EXPECT_NE(launch_of(0), name) << "every launch has its own";
  options.flight_recorder.launch = "given";
  EXPECT_THROW(launch(2, options, fail), std::runtime_error);
  EXPECT_EQ(launch_of(1), "given");
}

TEST(FlightOptions, ThatCannotBeAreRefused) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  const auto refusal = [](const FlightRecorderOptions& flights) -> std::string {
    try {
      const FlightRecorder recorder(flights, 0, 1);
      return "accepted";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_THAT(refusal({.operations = -1}), HasSubstr("flight_recorder.operations = -1: use 0 to 1048576"));
  EXPECT_THAT(refusal({.operations = 0, .folder = folder / "x"}), HasSubstr("keep at least 1 operation"));
  EXPECT_THAT(refusal({.folder = file}),
              AllOf(HasSubstr("flight_recorder.folder = " + file), HasSubstr("cannot be made")));
  EXPECT_THAT(refusal({.folder = file + "/below"}), HasSubstr("cannot be made"));
  EXPECT_EQ(refusal({.operations = 0}), "accepted");
}

TEST(ArrivalBoardTest, AddsUpLatenessOfEachRank) {
  ArrivalBoard board(4);
  board.add(std::vector{0, 1, 2, 3}, std::vector<int64_t>{100, 110, 150, 400});
  board.add(std::vector{3, 1}, std::vector<int64_t>{-5, 5});
  board.add(std::vector{2}, std::vector<int64_t>{9});
  const ArrivalTotals t = board.totals();
  EXPECT_EQ(t[0].collectives, 1);
  EXPECT_EQ(t[2].collectives, 1) << "a group of one rank does not count";
  EXPECT_EQ(t[1].late_ns, 10 + 10);
  EXPECT_EQ(t[1].last, 1);
  EXPECT_EQ(t[3].last, 1);
  EXPECT_EQ(t[3].late_ns, 300);
  EXPECT_EQ(t[3].after_median_ns, 290);
  EXPECT_EQ(t[0].after_median_ns, 0);
}

TEST(Reports, NameTheFirstFewRanksOfMany) {
  EXPECT_EQ(waiting_clause({}), "");
  const auto now = std::chrono::steady_clock::now();
  EXPECT_THAT(waiting_clause({{3, now}}), MatchesRegex("; rank 3 .for [0-9]+ ms. has come and waits"));
  EXPECT_THAT(waiting_clause({{3, now}, {1, now}, {2, now}}),
              MatchesRegex("; rank 1 .*, rank 2 .* and rank 3 .* have come and wait"));
  std::vector<Waiting> many(1000, {7, now});
  EXPECT_THAT(waiting_clause(many), HasSubstr(" and 984 more have come and wait"));
  const auto last = [](int rank) { return rank == 1 ? "" : "barrier #" + std::to_string(rank); };
  EXPECT_EQ(last_calls_clause({1, 2}, last), "; the last call of rank 2 was barrier #2");
}

}  // namespace
}  // namespace sherd::comm
