// Errors that report every rank: those that wait, those that are missing and their last calls; and the files
// of flight recorders.

#include <chrono>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/watch/flight_recorder.h>
#include <sherd/comm/watch/progress.h>

#include "comm/integer_tensors.h"
#include "comm/on_time.h"
#include "support/comma_locale.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;

/// The errors of the ranks that ended in a CommError. Each gives its sign of that, where there are `signs`.
std::vector<std::string> errors(int ranks, const LaunchOptions& options,
                                const std::function<void(RankContext&)>& body, Signs* signs = nullptr) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    run_ranks(ranks, options, [&](RankContext& c) {
      try {
        body(c);
        c.device->compute().synchronize();
      } catch (const CommError& e) {
        if (signs) signs->has_failed(c.world->rank());
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
        throw;
      }
    });
  } catch (const std::exception&) {  // reported above
  }
  return from_all_processes(texts);
}

void gradients(RankContext& c, int64_t n = 16) {
  const Serving serving(*c.world, Purpose("the gradients of unit 'blocks.1'"));
  c.world->all_reduce(c.device->compute(), make_tensor(*c.device, DType::f32, poison(n)));
}

/// After a barrier of all ranks the last one calls nothing further, and stays; the others make a call, `what`
/// in messages. Returns their errors, and how long they have waited.
std::pair<std::chrono::milliseconds, std::vector<std::string>> without_the_last(
    int ranks, const std::string& what, const std::function<void(RankContext&)>& call) {
  std::vector<int> others(static_cast<size_t>(ranks) - 1);
  std::iota(others.begin(), others.end(), 0);
  return with_timeout(
      [&](std::chrono::milliseconds given) {
        Signs signs;
        const auto body = [&](RankContext& c) {
          c.world->barrier(c.device->compute());
          c.device->compute().synchronize();
          if (c.world->rank() == ranks - 1) return signs.await_failures(others);
          call(c);
          c.device->compute().synchronize();
        };
        return errors(ranks, timeout_of(given), body, &signs);
      },
      [&](const std::vector<std::string>& texts) {
        const std::string last = "for rank " + std::to_string(ranks - 1) + ",";
        return testing::Value(texts, Each(AllOf(HasSubstr(what), HasSubstr(last))));
      });
}

TEST(TimeoutReport, SaysWhoWaitsForHowLongAndWhatTheOthersDidLast) {
  for (const int ranks : {2, 4}) {
    const auto [timeout, texts] =
        without_the_last(ranks, "all_reduce #2", [](RankContext& c) { gradients(c); });
    EXPECT_THAT(texts, SizeIs(ranks - 1));
    const std::string missing = std::to_string(ranks - 1), waited = std::to_string(timeout.count());
    EXPECT_THAT(
        texts,
        Each(AllOf(HasSubstr("all_reduce #2 (sum, f32, 16 elements, 64 bytes) for the gradients of unit "
                             "'blocks.1' on rank"),
                   HasSubstr("waited " + waited + " ms for rank " + missing + ", which did not call it"),
                   HasSubstr("the last call of rank " + missing + " was barrier #1 (0 bytes) of 'world'"))));
    for (int r = 0; r < ranks - 1; ++r)
      EXPECT_THAT(texts, Each(ContainsRegex("rank " + std::to_string(r) + " \\(for [0-9]+ ms\\)")));
    EXPECT_THAT(texts, Each(HasSubstr(ranks == 2 ? " has come and waits" : " have come and wait")));
  }
}

TEST(TimeoutReport, OfAMessageAndOfASplitSaysTheSame) {
  const auto message = without_the_last(2, "recv #1", [](RankContext& c) {
                         c.world->recv(c.device->compute(), make_tensor(*c.device, DType::f32, poison(2)), 1);
                       }).second;
  EXPECT_THAT(message, SizeIs(1));
  EXPECT_THAT(message,
              Each(AllOf(HasSubstr("recv #1 (f32, 2 elements, 8 bytes) on rank 0 from rank 1"),
                         HasSubstr("rank 0 (for "), HasSubstr("the last call of rank 1 was barrier #1"))));
  const auto split = without_the_last(3, "split(", [](RankContext& c) { c.world->split(0, 0); }).second;
  EXPECT_THAT(split, SizeIs(2));
  EXPECT_THAT(split, Each(AllOf(HasSubstr("split(color 0, key 0)"), HasSubstr("for rank 2,"),
                                HasSubstr("the last call of rank 2 was barrier #1"))));
}

TEST(TimeoutReport, OfACollectiveFunctionComesLongBeforeTheTimeoutOnce) {
  ::testing::internal::CaptureStderr();
  without_the_last(3, "split(color 0, key 0) for export_weights()", [](RankContext& c) {
    const Serving entry(*c.world, Purpose::entry("export_weights"));
    c.world->split(0, 0);
  });
  std::string lines;
  for (const std::string& text : from_all_processes({::testing::internal::GetCapturedStderr()}))
    lines += text;
  EXPECT_THAT(
      lines,
      AllOf(HasSubstr("split(color 0, key 0) for export_weights() on rank 0 waits for rank 2; rank 0 (for "),
            HasSubstr("the last call of rank 2 was barrier #1"), testing::Not(HasSubstr("on rank 1 waits"))));
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
  EXPECT_THAT(
      texts,
      Each(AllOf(HasSubstr("all_reduce #3"),
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
  EXPECT_THAT(texts,
              Each(AllOf(HasSubstr("rank 0 called all_reduce #2"),
                         HasSubstr("the weights of unit 'blocks.0', rank 2"),
                         HasSubstr("all_reduce #2 (sum, f32, 4 elements, 16 bytes) for the weights of unit "
                                   "'blocks.1'"))));
}

/// One folder of all processes.
class SharedFolder {
 public:
  SharedFolder() : path_(from_all_processes({own_.path().string()}).front()) {}
  ~SharedFolder() { from_all_processes({}); }  // no process uses it any more
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
    EXPECT_THAT(
        texts, testing::Contains(HasSubstr("what rank " + std::to_string(rank) + " did last is in " + path)));
    const std::string text = read_bytes(path);
    EXPECT_THAT(text,
                AllOf(HasSubstr("\"rank\": " + std::to_string(rank)), HasSubstr("\"recorded\": 21"),
                      HasSubstr("ranks of one group called different collectives"),
                      HasSubstr("the gradients of unit 'blocks.1'"), HasSubstr("\"op\": \"all_reduce\""),
                      HasSubstr("\"sequence\": 14"), Not(HasSubstr("\"sequence\": 13,"))));
  }
  EXPECT_THAT(read_bytes(options.flight_recorder.folder + "/flight_rank_00001.json"),
              HasSubstr("\"bytes\": 32"));
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
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("called different collectives"),
                                HasSubstr("could not be written to"), HasSubstr("No such file"))));
}

TEST(FlightFiles, AreWrittenOfRanksThatAreInNoCallWhenAnotherFails) {
  const SharedFolder folder;
  Signs signs;
  LaunchOptions options;
  options.flight_recorder.folder = folder.path();
  const auto texts = errors(2, options, [&](RankContext& c) {
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() == 0) {
      signs.await("rank 1 is in no call");  // the barrier may be over here long before it is there
      throw std::runtime_error("of its own");
    }
    signs.give("rank 1 is in no call");
    // It computes, and calls nothing: its file comes all the same.
    const auto last = std::chrono::steady_clock::now() + kLongEnough;
    while (!std::filesystem::exists(folder.path() + "/flight_rank_00001.json") &&
           std::chrono::steady_clock::now() < last)
      std::this_thread::sleep_for(20ms);
  });
  EXPECT_THAT(texts, SizeIs(0));
  for (const char* name : {"/flight_rank_00000.json", "/flight_rank_00001.json"})
    EXPECT_THAT(read_bytes(folder.path() + name), HasSubstr("rank 0 failed: of its own"));
}

/// Returns the error of rank 0's totals if rank 1 came that much later than ranks 0 and 2 to 12 collectives.
std::string wrong_with(const ArrivalTotals& totals, std::chrono::nanoseconds late) {
  if (totals.size() != 3) return "not three ranks";
  for (const RankArrivals& r : totals)
    if (r.collectives < 11) return "too few collectives";
  std::string wrong;
  if (totals[1].last <= totals[0].last + totals[2].last)
    wrong += "rank 1 was not the last one for the most part; ";
  if (totals[1].late_ns <= std::max(totals[0].late_ns, totals[2].late_ns))
    wrong += "rank 1 was not late the most; ";
  if (totals[1].after_median_ns <= 5 * late.count()) wrong += "rank 1 was hardly behind the median; ";
  return wrong;
}

TEST(Arrivals, NameTheRankThatComesLast) {
  std::string wrong;
  // On a busy machine the others may be as late as a short while is long.
  for (const auto late : {20ms, 200ms, 2000ms}) {
    Signs signs;
    std::vector<std::string> told;
    run_ranks(3, [&](RankContext& c) {
      const auto pair = c.world->split(c.world->rank() == 0, 0);  // {1, 2}
      const std::string rank = std::to_string(c.world->rank());
      for (int i = 0; i < 12; ++i) {
        const std::string place = "call " + std::to_string(i) + " of rank ";
        if (c.world->rank() == 1) {
          for (const char* other : {"0", "2"}) signs.await(place + other);
          std::this_thread::sleep_for(late);
        } else {
          c.device->compute().submit("sign",
                                     [&, sign = place + rank](ExecutionContext&) { signs.give(sign); });
        }
        gradients(c);
        c.device->compute().synchronize();
      }
      if (c.world->rank() == 0) told = {wrong_with(c.world->arrivals(), late)};
    });
    wrong = from_all_processes(told).at(0);
    if (wrong.empty()) break;
  }
  EXPECT_EQ(wrong, "");
}

// Numbers of more than three digits, before a space that separates thousands.
TEST(Progress, ALocaleChangesNothing) {
  const test::CommaLocale locale;
  const auto store = make_memory_store();
  comm::Progress gone(store, "world", 0), reads(store, "world", 1);
  for (int i = 0; i < 1234; ++i) gone.begin("567 key", "all_reduce");
  gone.leave();
  reads.poll();
  EXPECT_TRUE(reads.left_before({0, 1}, "567 key", 1234).empty()) << "it takes part in that operation";
  EXPECT_EQ(reads.left_before({0, 1}, "567 key", 1235), std::vector<int>{0});
}

}  // namespace
}  // namespace sherd::test
