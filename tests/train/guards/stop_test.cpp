// Causes of an early stop: lengths of time, the limit, signals, and that all ranks agree.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/kernels/ops.h>
#include <sherd/train/guards/stop_agreement.h>
#include <sherd/train/guards/stop_request.h>
#include <sherd/train/guards/wall_limit.h>
#include <sherd/train/settings/duration.h>

#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;

TEST(Duration, TheFormsThatPeopleWrite) {
  const std::pair<const char*, double> forms[] = {
      {"3h50m", 13800},  {"90m", 5400},     {"7200s", 7200},       {"01:30:00", 5400}, {"1d", 86400},
      {"1d12h", 129600}, {"1h0m30s", 3630}, {"100:00:01", 360001}, {"0s", 0},          {"0:00:05", 5}};
  for (const auto& [text, seconds] : forms) EXPECT_EQ(parse_duration(text), seconds) << text;
  for (const char* text :
       {"", "90", "h", "3h50", "50m3h", "1h1h", "-3m", "3 h", "1.5h", "01:30", "1:60:00", "1:00:60", "1:5:00",
        ":30:00", "01:30:00s", "99999999999999999999s", "3hm", "1:00:000", "3H"})
    EXPECT_EQ(parse_duration(text), std::nullopt) << text;
  EXPECT_EQ(show_duration(13800), "3h50m0s");
  EXPECT_EQ(show_duration(90.4), "1m30s");
  EXPECT_EQ(show_duration(12.34), "12.3s");
  EXPECT_EQ(show_duration(59.99), "1m0s");
}

TEST(WallLimit, LeavesTimeForTheStepThatRunsTheNextAndTheSave) {
  WallLimit limit(1000);
  EXPECT_FALSE(limit.reached(924));
  EXPECT_TRUE(limit.reached(925))
      << "a save that nobody has measured is taken for 50 s here, one and a half times";
  limit.save_took(4);
  EXPECT_DOUBLE_EQ(limit.latest(), 994);
  limit.step_took(30);  // the first, which warms up, is used until there are others
  EXPECT_DOUBLE_EQ(limit.latest(), 934);
  limit.step_took(2);
  EXPECT_DOUBLE_EQ(limit.latest(), 990);
  limit.step_took(10);
  limit.save_took(8);
  limit.save_took(6);
  EXPECT_DOUBLE_EQ(limit.latest(), 968);
  for (int i = 0; i < 64; ++i) limit.step_took(1);
  EXPECT_DOUBLE_EQ(limit.latest(), 986) << "the slow step is forgotten";
  EXPECT_FALSE(WallLimit(0).reached(1e9)) << "no limit";
  EXPECT_DOUBLE_EQ(WallLimit(36000).latest(), 36000 - 90) << "at most a minute is taken for granted";
}

/// Waits at most 20 s.
template <class Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
  return condition();
}

TEST(StopRequest, KeepsTheFirstSignalAndRestoresTheHandlers) {
  struct sigaction before {
  }, after{};
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &before), 0);
  for (int again = 0; again < 2; ++again) {
    const StopRequest request({.signals = {SIGTERM, SIGUSR2}, .program = "test"});
    EXPECT_EQ(request.signal(), 0) << "a request begins anew";
    EXPECT_THROW(StopRequest({.signals = {SIGINT}}), InvalidArgument) << "one at a time";
    ::raise(SIGUSR2);
    EXPECT_EQ(request.signal(), SIGUSR2);
    ::raise(SIGTERM);  // at once behind it: the same wish
    EXPECT_EQ(request.signal(), SIGUSR2);
  }
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &after), 0);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  {
    StopRequest request({.signals = {SIGUSR2}});
    ::raise(SIGUSR2);
    request.release_ignored();
    ::raise(SIGUSR2);  // would end this process
  }
  ::raise(SIGUSR2);
  ::sigaction(SIGUSR2, &before, nullptr);
  EXPECT_EQ(StopRequest::name_of(SIGTERM), "SIGTERM");
}

TEST(StopRequest, IgnoredSignalsStayIgnoredAndMisuseIsNamed) {
  ::signal(SIGUSR2, SIG_IGN);
  {
    const StopRequest request({.signals = {SIGUSR2}});
    ::raise(SIGUSR2);
    EXPECT_EQ(request.signal(), 0);
  }
  ::signal(SIGUSR2, SIG_DFL);
  EXPECT_THROW(StopRequest({.signals = {}}), InvalidArgument);
  EXPECT_THAT(message_of<InvalidArgument>([] {
                StopRequest request({.signals = {SIGTERM, SIGKILL}});
              }),
              HasSubstr("SIGKILL cannot be taken"));
  for (const int number : stop_signals()) EXPECT_TRUE(is_stop_signal(number));
  EXPECT_FALSE(is_stop_signal(SIGPIPE));
  const StopRequest usable({.signals = {SIGTERM}});
}

TEST(StopRequest, TheGraceExpiresOnlyAfterASignalAndNotOnceTheProcessIsDone) {
  std::atomic<int> expired{0};
  const auto options = [&](std::chrono::milliseconds grace) {
    return StopRequestOptions{.signals = {SIGUSR2}, .grace = grace, .expired = [&] { ++expired; }};
  };
  {
    const StopRequest request(options(20ms));
    std::this_thread::sleep_for(60ms);
    EXPECT_EQ(expired, 0) << "no signal, no grace";
    ::raise(SIGUSR2);
    EXPECT_TRUE(comes_true([&] { return expired == 1; }));
  }
  {
    const StopRequest request(options(1h));
    ::raise(SIGUSR2);
  }  // ends at once, with the grace running
  { const StopRequest request(options(1h)); }
  {
    StopRequest request(options(1h));
    ::raise(SIGUSR2);
    request.release();  // joins the thread that waits for the end of the grace
    request.release();
    EXPECT_EQ(request.signal(), SIGUSR2);
  }
  EXPECT_EQ(expired, 1);
}

using StopRequestDeathTest = ::testing::Test;

TEST(StopRequestDeathTest, ASecondSignalEndsTheProcessAtOnceAndSoDoesTheEndOfTheGrace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopRequest request({.signals = {SIGUSR1, SIGTERM}});
        ::raise(SIGUSR1);
        std::this_thread::sleep_for(400ms);
        ::raise(SIGTERM);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "second signal.*nothing more was saved");
  EXPECT_EXIT(
      {
        const StopRequest request({.signals = {SIGUSR1, SIGTERM}, .second_ends = false});
        ::raise(SIGUSR1);
        std::this_thread::sleep_for(400ms);
        ::raise(SIGTERM);
        ::_exit(request.signal() == SIGUSR1 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(
      {
        const StopRequest request({.signals = {SIGTERM}, .grace = 50ms, .program = "test"});
        ::raise(SIGTERM);
        std::this_thread::sleep_for(60s);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(1), "test: SIGTERM came.*the grace is over");
}

TEST(StopAgreement, WithoutReasonsAndWithALimitThatIsNear) {
  const StopAgreement nobody(nullptr, nullptr);
  EXPECT_EQ(nobody.want(), 0);
  EXPECT_EQ(nobody.reason(0), "");
  const auto limit = std::make_shared<WallLimit>(13800);
  limit->save_took(1);
  StopAgreement in_time(nullptr, limit), late(nullptr, limit, StopAgreement::Clock::now() - 13799s);
  EXPECT_EQ(in_time.want(), 0);
  ASSERT_NE(late.want(), 0);
  in_time.hear(0);
  EXPECT_FALSE(in_time.stops());
  in_time.hear(late.want());
  EXPECT_TRUE(in_time.stops());
  EXPECT_EQ(in_time.reason(13800), "the limit of 3h50m0s is near");
}

// The largest word of all ranks, as a step's reduction brings it to each.
TEST(StopAgreement, RanksThatReceiveItAtDifferentTimesStopAfterTheSameStep) {
  const StopRequest request({.signals = {SIGUSR2}});
  std::mutex mutex;
  std::set<int> last_steps;
  std::set<std::string> reasons;
  test::launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
    const int rank = r.world->rank();
    // Rank 2 alone is a process that got the signal, and it comes while the others are somewhere in their
    // steps.
    StopAgreement stop(rank == 2 ? &request : nullptr, nullptr);
    Stream& s = r.device->compute();
    int step = 0;
    while (!stop.stops() && step < 1000) {
      ++step;
      if (rank == 1 && step == 7) ::raise(SIGUSR2);
      int64_t word = stop.want();
      const Tensor t = Tensor::empty(*r.device, {1}, DType::i64, "test");
      ops::copy_from_host(s, t, &word, sizeof word);
      r.world->all_reduce(s, t, ReduceOp::max);
      ops::copy_to_host(s, &word, t);
      stop.hear(word);
    }
    const std::lock_guard lock(mutex);
    last_steps.insert(step);
    reasons.insert(stop.reason(0));
  });
  EXPECT_EQ(last_steps.size(), 1u);
  EXPECT_LE(*last_steps.begin(), 8);
  EXPECT_EQ(reasons, std::set<std::string>{"SIGUSR2 came"});
}

}  // namespace
}  // namespace sherd
