// Decisions of `sherd run`, without starting a process.
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <sherd/base/error.h>

#include "run/rank_choice.h"
#include "run/run_hosts.h"
#include "run/run_policy.h"
#include "run/run_report.h"
#include "run/run_target.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::tools {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

TEST(RankChoice, IsTheLargestNumberThatTakesTheSameSteps) {
  struct Case {
    int64_t most, least;
    RankRules rules;
    int64_t ranks;
  };
  const Case cases[] = {
      {4, 1, {}, 4},
      {0, 1, {}, 0},
      {3, 4, {}, 0},
      {4, 1, {.batch = 16}, 4},
      {3, 1, {.batch = 16}, 2},
      {3, 3, {.batch = 16}, 0},
      {7, 1, {.batch = 12}, 6},
      {5, 1, {.batch = 12}, 4},
      {8, 1, {.batch = 12, .grad_accum = 2}, 6},
      {5, 1, {.batch = 12, .grad_accum = 2}, 3},
      {8, 1, {.batch = 12, .grad_accum = 5}, 0},  // no number of ranks splits 12 into five
      {7, 1, {.batch = 12, .tp = 2}, 6},          // three ranks with different data
      {3, 1, {.batch = 12, .tp = 2}, 2},
      {1, 1, {.batch = 12, .tp = 2}, 0},
      {7, 1, {.batch = 12, .ep = 4}, 4},
      {3, 1, {.batch = 12, .ep = 4}, 0},
      {11, 1, {.batch = 16, .tp = 2, .ep = 4}, 8},
      {7, 1, {.batch = 24, .replicas = 2}, 6},
      {7, 1, {.batch = 24, .replicas = 2, .tp = 2}, 4},
      {1024, 1, {.batch = 1}, 1},
  };
  for (const Case& c : cases)
    EXPECT_EQ(choose_ranks(c.most, c.least, c.rules), c.ranks)
        << c.most << " at most, " << c.least << " at least, " << c.rules.describe();
}

FailedStart killed(int64_t ranks, int rank, bool progressed = false) {
  return {.ranks = ranks,
          .progressed = progressed,
          .way = "rank " + std::to_string(rank) + " signal 9",
          .killed = true,
          .dead = 1};
}
FailedStart ended(int64_t ranks, int code, const std::string& words, bool progressed = false) {
  return {.ranks = ranks, .progressed = progressed, .way = words, .code = code};
}

TEST(RestartPolicy, OnOneMachineTheNumberStaysUntilTheRestartsAreUsedUp) {
  RestartPolicy policy({.ranks = 4, .max_restarts = 3}, {.batch = 12});
  EXPECT_EQ(policy.first(kAny).ranks, 4);
  EXPECT_EQ(policy.after(killed(4, 1), kAny).ranks, 4);
  EXPECT_EQ(policy.after(killed(4, 2), kAny).ranks, 4) << "another rank";
  EXPECT_EQ(policy.after(ended(4, 1, "x"), kAny).ranks, 4);
  const NextStart last = policy.after(killed(4, 1), kAny);
  EXPECT_EQ(last.ranks, 0);
  EXPECT_EQ(last.exit_code, 1);
  EXPECT_THAT(last.why, HasSubstr("--max-restarts 3"));
}

TEST(RestartPolicy, ACrashLoopIsAbortedUnlessStepsAreDone) {
  RestartPolicy policy({.ranks = 2, .max_restarts = 100}, {});
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open x"), kAny).ranks, 2);
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open y"), kAny).ranks, 2) << "in another way";
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open x"), kAny).ranks, 2);
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open x", true), kAny).ranks, 2) << "it had done a step";
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open x"), kAny).ranks, 2);
  FailedStart slow = ended(2, 1, "cannot open x");
  slow.seconds = 3600;
  EXPECT_EQ(policy.after(slow, kAny).ranks, 2) << "an hour is no start that fails at once";
  EXPECT_EQ(policy.after(ended(2, 1, "cannot open x"), kAny).ranks, 2);
  const NextStart last = policy.after(ended(2, 1, "cannot open x"), kAny);
  EXPECT_EQ(last.ranks, 0);
  EXPECT_THAT(last.why, HasSubstr("crash loop"));
}

TEST(RestartPolicy, TheSameRankKilledTwiceAtOnceOrNoBeginningCostsARank) {
  RestartPolicy policy({.ranks = 4, .min_ranks = 2, .max_restarts = 100}, {.batch = 16});
  EXPECT_EQ(policy.after(killed(4, 3), kAny).ranks, 4);
  const NextStart two = policy.after(killed(4, 3), kAny);
  EXPECT_EQ(two.ranks, 2) << "three do not split 16";
  EXPECT_THAT(two.why, AllOf(HasSubstr("3 are left"), HasSubstr("a batch of 16")));
  EXPECT_EQ(policy.after(killed(2, 0), kAny).ranks, 2);
  EXPECT_EQ(policy.after(killed(2, 0), kAny).ranks, 0) << "never below --min-ranks";
  FailedStart not_begun = ended(3, -1, "begin: not enough slots");
  not_begun.began = false;
  RestartPolicy other({.ranks = 3, .max_restarts = 100}, {});
  EXPECT_EQ(other.after(not_begun, kAny).ranks, 3);
  EXPECT_EQ(other.after(not_begun, kAny).ranks, 2);
}

TEST(RestartPolicy, LostRanksAndHostsAreLeftOut) {
  RestartPolicy shrinks({.ranks = 6, .max_restarts = 100, .shrink = true}, {.batch = 12});
  EXPECT_EQ(shrinks.after(killed(6, 1, true), kAny).ranks, 4) << "five do not split 12";
  EXPECT_EQ(shrinks.after(killed(4, 1, true), kAny).ranks, 4) << "four are left";
  EXPECT_EQ(shrinks.after(killed(4, 1, true), kAny).ranks, 3);
  FailedStart gone = ended(6, 75, "the device is gone", true);
  gone.lost = 2;
  RestartPolicy codes({.ranks = 6, .max_restarts = 100, .lost_code = 75}, {});
  EXPECT_EQ(codes.after(gone, kAny).ranks, 4);
  RestartPolicy hosts({.ranks = 6, .min_ranks = 2, .max_restarts = 100}, {.batch = 12});
  EXPECT_EQ(hosts.after(killed(6, 1, true), 4).ranks, 4);
  EXPECT_EQ(hosts.after(killed(4, 1, true), 6).ranks, 6) << "the host is back";
  EXPECT_EQ(hosts.after(killed(6, 1, true), 1).ranks, 0);
}

TEST(RestartPolicy, ArgumentsThatAreRefusedAreNotTriedAgainButASmallerNumberIs) {
  RestartPolicy policy({.ranks = 4}, {});
  EXPECT_EQ(policy.after(ended(4, 2, "usage"), kAny).exit_code, 2);
  RestartPolicy shrinks({.ranks = 4, .max_restarts = 100, .shrink = true}, {});
  EXPECT_EQ(shrinks.after(killed(4, 1, true), kAny).ranks, 3);
  EXPECT_EQ(shrinks.after(ended(3, 2, "--batch 16: must be a multiple"), kAny).ranks, 2);
  EXPECT_EQ(shrinks.after(killed(2, 1, true), kAny).ranks, 1);
  const NextStart last = shrinks.after(ended(1, 2, "other"), kAny);
  EXPECT_EQ(last.ranks, 0);
}

TEST(RestartPolicy, RulesThatAreNotKnownYetAreFoundByTryingOrLearntFromACheckpoint) {
  // Killed before the first checkpoint: the program took four ranks, so it is their number that it refuses.
  RestartPolicy shrinks({.ranks = 4, .max_restarts = 100, .shrink = true}, {});
  EXPECT_EQ(shrinks.after(killed(4, 1), kAny).ranks, 3);
  EXPECT_EQ(shrinks.after(ended(3, 2, "--batch 16: must be a multiple"), kAny).ranks, 2);
  RestartPolicy twice({.ranks = 4, .max_restarts = 100}, {});
  EXPECT_EQ(twice.after(killed(4, 1), kAny).ranks, 4);
  EXPECT_EQ(twice.after(killed(4, 1), kAny).ranks, 3);
  EXPECT_EQ(twice.after(ended(3, 2, "--batch 16: must be a multiple"), kAny).ranks, 2);
  FailedStart not_begun = killed(4, 1);
  not_begun.began = false;
  RestartPolicy unknown({.ranks = 4, .shrink = true}, {});
  EXPECT_EQ(unknown.after(not_begun, kAny).ranks, 3);
  EXPECT_EQ(unknown.after(ended(3, 2, "usage"), kAny).exit_code, 2) << "it has not taken any number";
  RestartPolicy learns({.ranks = 4, .max_restarts = 100, .shrink = true}, {});
  learns.set_rules({.batch = 16});
  EXPECT_EQ(learns.after(killed(4, 1, true), kAny).ranks, 2);
}

TEST(RestartPolicy, AFinalFailureIsNotRestartedAndEndedRanksAreNotLost) {
  RestartPolicy policy({.ranks = 4, .max_restarts = 100}, {});
  FailedStart for_good = ended(4, kForGood, "lines are missing", true);
  for_good.for_good = true;
  const NextStart last = policy.after(for_good, kAny);
  EXPECT_EQ(last.ranks, 0);
  EXPECT_EQ(last.exit_code, 1);

  using Kind = RankReport::Kind;
  StartOutcome outcome;
  outcome.began = true;
  outcome.ended = {{Kind::ended, 2, "h", 1, 1}, {Kind::killed, 1, "h", 2, 9}, {Kind::killed, 0, "h", 3, 15}};
  outcome.on_their_own = 2;
  outcome.first = outcome.ended[1];
  EXPECT_EQ(failed_start(outcome, 3, false, {}).dead, 1);
  outcome.first = RankReport{Kind::stopped, 3, "h", 4, 19};
  outcome.stopped = {*outcome.first};
  const FailedStart stopped = failed_start(outcome, 4, false, {});
  EXPECT_EQ(stopped.dead, 2);
  EXPECT_EQ(stopped.code, -1) << "19 is a signal";
  EXPECT_TRUE(stopped.killed);
  EXPECT_FALSE(stopped.for_good);
  outcome.ended[0].value = kForGood;
  EXPECT_TRUE(failed_start(outcome, 4, false, {}).for_good);
}

TEST(RunReport, IsFoundAmongWhatIsPrintedHoweverItIsCut) {
  const RankReport said{RankReport::Kind::killed, 3, "node1", 4711, 9};
  EXPECT_EQ(said.describe(), "rank 3 (process 4711 on node1) was killed by signal 9 (Killed)");
  const std::string all = "half a line" + encode_report(said) + "\x1e and more\n\x1esherd-run-rank odd\n" +
                          encode_report({RankReport::Kind::ended, -1, "h", 1, 0}) + "end";
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    std::vector<std::string> reports;
    std::string text;
    ReportReader reader([&](const RankReport& r) { reports.push_back(r.describe()); },
                        [&](std::string_view t) { text += t; });
    reader.add(std::string_view(all).substr(0, cut));
    reader.add(std::string_view(all).substr(cut));
    EXPECT_THAT(reports, ElementsAre(said.describe(), "process 1 on h ended with exit code 0")) << cut;
    EXPECT_EQ(text, "half a line\x1e and more\n\x1esherd-run-rank odd\nend") << cut;
  }
}

TEST(RunHosts, AreReadAskedAndCounted) {
  const auto hosts = parse_hosts("a,b:4", 2);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(slots_of(hosts), 6);
  const TemporaryFolder folder;
  const std::string file = folder.write("hosts", "# ours\na slots=3  # big\n\nb max_slots=9\n");
  EXPECT_EQ(slots_of(read_hostfile(file, 2)), 5);
  const auto there =
      hosts_there(parse_hosts("a,b:4,localhost:8", 2), [](const std::string& h) { return h == "b"; });
  EXPECT_EQ(slots_of(there), 12);
  for (const char* wrong : {"", "a:0", "a:x", "a;rm", "-o", "a b", "a,,b"})
    EXPECT_THROW(parse_hosts(wrong, 1), InvalidArgument) << wrong;
  EXPECT_THAT(message_of<InvalidArgument>([&] { read_hostfile(folder.write("bad", "a\nb cores=3\n"), 1); }),
              HasSubstr("bad:2: 'cores=3'"));
  EXPECT_THROW(read_hostfile(folder / "none", 1), IoError);
}

TEST(RunTarget, ReadsWhatMattersOfTheCommandAndItsFile) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("run.txtpb", "# batch: 1\nbatch: 24 tp: 2\nsave: \"" + folder / "saved" +
                                    "\"\nroute: \"tp: 7\"\nranks: 4\n");
  const RunTarget target(
      {"train_gpt", "--config", file, "--grad-accum=3", "--batch", "48", "--expert-parallel", "4"});
  const RankRules rules = target.rules();
  EXPECT_EQ(rules.batch, 48);
  EXPECT_EQ(rules.grad_accum, 3);
  EXPECT_EQ(rules.tp, 2);
  EXPECT_EQ(rules.ep, 4);
  EXPECT_EQ(target.save(), folder / "saved");
  EXPECT_THAT(target.command(3, true), ElementsAre("train_gpt", "--config", file, "--grad-accum=3", "--batch",
                                                   "48", "--expert-parallel", "4", "--ranks", "3"));
  EXPECT_EQ(RunTarget({"x"}).rules().batch, 0) << "not known";
  EXPECT_THROW(RunTarget({"x", "--batch", "many"}).rules(), InvalidArgument);
  EXPECT_THROW(RunTarget({"x", "--config", folder / "none"}), IoError);
}

}  // namespace
}  // namespace sherd::tools
