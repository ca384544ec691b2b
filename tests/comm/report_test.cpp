// What errors say of every rank: who has come and waits, who has not and what it did last; and the files of flight
// recorders.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <thread>

#include <sherd/comm/core/detail/flight_recorder.h>

#include "comm/integer_tensors.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

/// What the ranks that ended in a CommError were told.
std::vector<std::string> errors(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    run_ranks(ranks, options, [&](RankContext& c) {
      try {
        body(c);
        c.device->compute().synchronize();
      } catch (const CommError& e) {
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
        throw;
      }
    });
  } catch (const std::exception&) {  // heard above
  }
  return from_all_processes(texts);
}

LaunchOptions timeout_of(std::chrono::milliseconds timeout) {
  LaunchOptions options;
  options.timeout = timeout;
  return options;
}

void gradients(RankContext& c, int64_t n = 16) {
  const Serving serving(*c.world, Purpose("the gradients of unit 'blocks.1'"));
  c.world->all_reduce(c.device->compute(), make_tensor(*c.device, DType::f32, poison(n)));
}

TEST(TimeoutReport, SaysWhoWaitsForHowLongAndWhatTheOthersDidLast) {
  for (const int ranks : {2, 4}) {
    const auto texts = errors(ranks, timeout_of(300ms), [&](RankContext& c) {
      c.world->barrier(c.device->compute());
      c.device->compute().synchronize();
      if (c.world->rank() == ranks - 1) return std::this_thread::sleep_for(700ms);
      gradients(c);
      c.device->compute().synchronize();
    });
    EXPECT_THAT(texts, SizeIs(ranks - 1));
    const std::string missing = std::to_string(ranks - 1);
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("all_reduce #2 (sum, f32, 16 elements, 64 bytes) for the gradients of unit "
                                            "'blocks.1' on rank"),
                                  HasSubstr("waited 300 ms for rank " + missing + ", which did not call it"),
                                  HasSubstr("the last call of rank " + missing + " was barrier #1 (0 bytes) of 'world'"))));
    for (int r = 0; r < ranks - 1; ++r)
      EXPECT_THAT(texts, Each(ContainsRegex("rank " + std::to_string(r) + " \\(for [0-9]+ ms\\)")));
    EXPECT_THAT(texts, Each(HasSubstr(ranks == 2 ? " has come and waits" : " have come and wait")));
  }
}

TEST(TimeoutReport, OfAMessageAndOfASplitSaysTheSame) {
  const auto message = errors(2, timeout_of(300ms), [](RankContext& c) {
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() == 1) return std::this_thread::sleep_for(700ms);
    c.world->recv(c.device->compute(), make_tensor(*c.device, DType::f32, poison(2)), 1);
    c.device->compute().synchronize();
  });
  EXPECT_THAT(message, SizeIs(1));
  EXPECT_THAT(message, Each(AllOf(HasSubstr("recv #1 (f32, 2 elements, 8 bytes) on rank 0 from rank 1"),
                                  HasSubstr("rank 0 (for "), HasSubstr("the last call of rank 1 was barrier #1"))));
  const auto split = errors(3, timeout_of(300ms), [](RankContext& c) {
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() == 2) return std::this_thread::sleep_for(700ms);
    c.world->split(0, 0);
  });
  EXPECT_THAT(split, SizeIs(2));
  EXPECT_THAT(split, Each(AllOf(HasSubstr("split(color 0, key 0)"), HasSubstr("for rank 2,"),
                                HasSubstr("the last call of rank 2 was barrier #1"))));
}

TEST(EarlyLeaver, IsReportedAtOnceWithWhatItDidLast) {
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors(3, timeout_of(300s), [](RankContext& c) {
    for (int step = 1; step <= 3; ++step) {
      if (step == 3 && c.world->rank() == 1) return;
      gradients(c, 16 + step);
    }
  });
  EXPECT_THAT(texts, SizeIs(2));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("all_reduce #3"),
                                HasSubstr("rank 1 has returned from its body and will not call it"),
                                HasSubstr("the last call of rank 1 was all_reduce #2 (sum, f32, 18 elements, 72 bytes) for "
                                          "the gradients of unit 'blocks.1' of 'world', done"))));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 100s) << "long before the timeout";
}

TEST(DifferentUnits, AreNamedWithTheRankAndTheOperation) {
  const auto texts = errors(3, {}, [](RankContext& c) {
    gradients(c);
    // Rank 2 leaves a unit out, so its next call is what the others call later.
    const std::vector<std::string> units{"blocks.0", "blocks.1"};
    for (size_t i = c.world->rank() == 2 ? 1 : 0; i < units.size(); ++i) {
      const Serving serving(*c.world, Purpose("the weights of unit '" + units[i] + "'"));
      c.world->all_reduce(c.device->compute(), make_tensor(*c.device, DType::f32, poison(4)));
    }
  });
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 0 called all_reduce #2"), HasSubstr("the weights of unit 'blocks.0', rank 2"),
                                HasSubstr("all_reduce #2 (sum, f32, 4 elements, 16 bytes) for the weights of unit "
                                          "'blocks.1'"))));
}

/// One folder of all processes.
class SharedFolder {
 public:
  SharedFolder() : path_(from_all_processes({own_.path().string()}).front()) {}
  ~SharedFolder() { from_all_processes({}); }  // nobody uses it any more
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string path() const { return path_; }

 private:
  TemporaryFolder own_;
  std::string path_;
};

TEST(FlightFiles, AreWrittenByEveryRankWhenTheLaunchFailsAndNamedByTheError) {
  const SharedFolder folder;
  LaunchOptions options;
  options.flight_recorder = {.operations = 8, .folder = folder.path() + "/made/on the way"};
  const auto texts = errors(3, options, [](RankContext& c) {
    for (int i = 0; i < 20; ++i) c.world->barrier(c.device->compute());
    gradients(c, c.world->rank() == 1 ? 8 : 16);
  });
  EXPECT_THAT(texts, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string path = options.flight_recorder.folder + "/" + comm::FlightRecorder::file_name(rank);
    EXPECT_THAT(texts, testing::Contains(HasSubstr("what rank " + std::to_string(rank) + " did last is in " + path)));
    const std::string text = read_bytes(path);
    EXPECT_THAT(text, AllOf(HasSubstr("\"rank\": " + std::to_string(rank)), HasSubstr("\"recorded\": 21"),
                            HasSubstr("ranks of one group called different collectives"),
                            HasSubstr("the gradients of unit 'blocks.1'"), HasSubstr("\"op\": \"all_reduce\""),
                            HasSubstr("\"sequence\": 14"), Not(HasSubstr("\"sequence\": 13,"))));
  }
  EXPECT_THAT(read_bytes(options.flight_recorder.folder + "/flight_rank_00001.json"), HasSubstr("\"bytes\": 32"));
  for (const auto& file : std::filesystem::directory_iterator(options.flight_recorder.folder))
    EXPECT_THAT(file.path().filename().string(), testing::StartsWith("flight_rank_")) << "no parts of files";
}

TEST(FlightFiles, ThatCannotBeWrittenDoNotHideTheFirstError) {
  const SharedFolder folder;
  LaunchOptions options;
  options.flight_recorder.folder = folder.path() + "/flights";
  const auto texts = errors(2, options, [&](RankContext& c) {
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() == 0) std::filesystem::remove_all(options.flight_recorder.folder);
    c.world->barrier(c.device->compute());
    gradients(c, 8 + c.world->rank());
  });
  EXPECT_THAT(texts, SizeIs(2));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("called different collectives"), HasSubstr("could not be written to"),
                                HasSubstr("No such file"))));
}

TEST(FlightFiles, AreWrittenOfRanksThatAreInNoCallWhenAnotherFails) {
  const SharedFolder folder;
  LaunchOptions options;
  options.flight_recorder.folder = folder.path();
  const auto texts = errors(2, options, [&](RankContext& c) {
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() == 0) throw std::runtime_error("of its own");
    // It computes, and calls nothing: its file comes all the same.
    for (int i = 0; i < 500 && !std::filesystem::exists(folder.path() + "/flight_rank_00001.json"); ++i)
      std::this_thread::sleep_for(20ms);
  });
  EXPECT_THAT(texts, SizeIs(0));
  for (const char* name : {"/flight_rank_00000.json", "/flight_rank_00001.json"})
    EXPECT_THAT(read_bytes(folder.path() + name), HasSubstr("rank 0 failed: of its own"));
}

TEST(Arrivals, NameTheRankThatComesLast) {
  run_ranks(3, [](RankContext& c) {
    const auto pair = c.world->split(c.world->rank() == 0, 0);  // {1, 2}
    for (int i = 0; i < 12; ++i) {
      if (c.world->rank() == 1) std::this_thread::sleep_for(20ms);
      gradients(c);
      c.device->compute().synchronize();
    }
    if (c.world->rank() != 0) return c.device->compute().synchronize();
    const ArrivalTotals totals = c.world->arrivals();
    ASSERT_EQ(totals.size(), 3u);
    for (const RankArrivals& r : totals) EXPECT_GE(r.collectives, 11);
    EXPECT_GT(totals[1].last, totals[0].last + totals[2].last);
    EXPECT_GT(totals[1].late_ns, totals[0].late_ns);
    EXPECT_GT(totals[1].late_ns, totals[2].late_ns);
    EXPECT_GT(totals[1].after_median_ns, 100'000'000);
  });
}

}  // namespace
}  // namespace sherd::test
