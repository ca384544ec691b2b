// Search beside the full enumeration of small spaces; constraints; remedies.
#include "train_gpt/run/search.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parse_flags.h"
#include "train_gpt/run/strategy_choice.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + below(all.size()));
  }

 private:
  std::mt19937 engine_;
};

struct Space {
  Words flags;
  std::string hardware;
  Constraints constraints;
};

/// Runs of 1 to 8 ranks with at most three free settings, on hosts of 2 to 8 ranks.
Space random_space(Random& random) {
  const int ranks = random.one_of({1, 2, 3, 4, 6, 8});
  Space s{.flags = {"--ranks", std::to_string(ranks), "--layers", random.one_of<std::string>({"1", "2", "3"}),
                    "--dim", random.one_of<std::string>({"32", "96"}), "--heads", "4", "--seq",
                    random.one_of<std::string>({"3", "16", "40"}), "--batch",
                    std::to_string(static_cast<int>(ranks) * random.one_of({1, 2, 4, 6}))},
          .hardware = random.one_of<std::string>({"cpu", "h100", "b200"}),
          .constraints = {.fixed = {kSearched.begin(), kSearched.end()}}};
  const auto add = [&](Words words) { s.flags.insert(s.flags.end(), words.begin(), words.end()); };
  if (random.below(3) == 0) add({"--experts", random.one_of<std::string>({"3", "4", "6"})});
  if (random.below(2) == 0) add({"--precision", "bf16"});
  if (random.below(3) == 0) add({"--optimizer", "muon"});
  for (size_t free = 1 + random.below(3); free > 0; --free)
    s.constraints.fixed.erase(kSearched[random.below(kSearched.size())]);
  s.constraints.keep_bits = random.below(6) == 0;
  return s;
}

SearchOptions options_of(const std::string& hardware, int ranks_per_host) {
  SearchOptions o{
      .hardware = sherd::hardware_profile(hardware), .tolerance = 0, .most_work = int64_t{1} << 60};
  o.hardware.ranks_per_host = ranks_per_host;
  o.forecast = {.ranks_per_host = ranks_per_host,
                .device = {.device = {.kernels = sherd::KernelSet::reference}}};
  return o;
}

// A limit between the least and the most memory of the space decides what fits.
TEST(Search, FindsTheFastestOfTheFullEnumeration) {
  const char* const seed = std::getenv("SHERD_SEARCH_SEED");
  Random random(seed == nullptr ? 20261129 : static_cast<unsigned>(std::atoi(seed)));
  int fits = 0, nothing = 0, spared = 0;
  for (int i = 0; i < 200; ++i) {
    Space space = random_space(random);
    const TrainConfig base = parse(space.flags);
    const SearchOptions options = options_of(space.hardware, random.one_of({2, 4, 8}));
    Search every(base, options);
    const SearchResult all = every.enumerate(space.constraints);
    ASSERT_THAT(all.candidates, Not(IsEmpty()));
    const auto [least, most] = std::ranges::minmax(all.candidates, {}, &Candidate::bytes);
    const int64_t from = least.bytes / 10 * 9;  // at a limit less is kept for reuse
    space.constraints.memory_bytes =
        from + static_cast<int64_t>(random.below(static_cast<size_t>(most.bytes - from)));
    const SearchResult limited = every.enumerate(space.constraints),
                       found = Search(base, options).run(space.constraints);
    SCOPED_TRACE(::testing::Message() << "space " << i << ": " << ::testing::PrintToString(space.flags)
                                      << " of " << limited.candidates.size() << " candidates");
    ASSERT_EQ(found.fits(), limited.fits());
    ++(found.fits() ? fits : nothing);
    spared += found.runs < all.runs;
    if (!found.fits()) continue;
    const Candidate &got = found.candidates.front(), &want = limited.candidates.front();
    EXPECT_EQ(got.time.total, want.time.total)
        << ::testing::PrintToString(got.changes) << " in place of " << ::testing::PrintToString(want.changes);
    EXPECT_LE(found.bound, want.time.total);
  }
  EXPECT_GT(fits, 100);
  EXPECT_GT(nothing, 5);
  EXPECT_GT(spared, 50) << "bounds leave candidates out";
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double seconds_of(const TrainConfig& c, const SearchOptions& options) {
  double most = 0;
  for (int rank = 0; rank < c.ranks; ++rank)
    most = std::max(most, play(forecast(c, rank, options.forecast).rank.record, options.hardware).total);
  return most;
}

const Words kOfFour = {"--ranks", "4",       "--batch", "16",    "--dim", "128",         "--layers",
                       "4",       "--heads", "4",       "--seq", "64",    "--optimizer", "muon"};

// A run near its limit returns memory and is slower, so that a dry run holds for one limit.
TEST(Search, FindsTheSameAfterSearchesWithOtherLimits) {
  const TrainConfig base = parse(kOfFour);
  const SearchOptions options = options_of("cpu", 4);
  Constraints constraints{.fixed = {kSearched.begin(), kSearched.end()}};
  for (const char* const name : {"strategy", "prefetch"}) constraints.fixed.erase(name);
  Search search(base, options);
  const std::vector<Candidate> all = search.enumerate(constraints).candidates;
  bool returned = false;
  for (const int percent : {90, 110, 80, 70, 60, 90, 110}) {
    constraints.memory_bytes = all.front().bytes * percent / 100;
    const SearchResult again = search.run(constraints), found = Search(base, options).run(constraints);
    ASSERT_EQ(again.fits(), found.fits());
    if (!found.fits()) continue;
    const Candidate &got = again.candidates.front(), &want = found.candidates.front();
    EXPECT_EQ(got.time.total, want.time.total) << percent;
    EXPECT_EQ(got.bytes, want.bytes) << percent;
    EXPECT_EQ(got.changes, want.changes) << percent;
    returned |= want.time.total > std::ranges::find(all, want.changes, &Candidate::changes)->time.total;
  }
  EXPECT_TRUE(returned) << "no limit was near";
}

TEST(Search, ReplicasWhoseGroupsHaveAPowerOfTwoKeepBits) {
  const auto of = [](const Words& flags) {
    std::vector<int64_t> replicas;
    for (const TrainConfig& c : choices(3, parse(flags), {.keep_bits = true}, 8))
      replicas.push_back(c.replicas);
    return replicas;
  };
  EXPECT_THAT(of({"--ranks", "4", "--batch", "8"}), ElementsAre(1, 2, 4));
  EXPECT_THAT(of({"--ranks", "6", "--batch", "6"}), ElementsAre(1, 3, 6));
  EXPECT_THAT(of({"--ranks", "6", "--batch", "6", "--replicas", "2"}), ElementsAre(2)) << "groups of 3";
  EXPECT_THAT(of({"--ranks", "4", "--batch", "8", "--grad-accum", "2"}), ElementsAre(1));
}

TEST(Remedies, AreOtherRuns) {
  const TrainConfig base = parse(kOfFour);
  const SearchOptions options = options_of("cpu", 4);
  const sherd::RankForecast f = forecast(base, 0, options.forecast).rank;
  for (const int64_t memory : {f.peak_bytes / 2, f.peak_bytes + f.by_class.at("slack") / 2}) {
    const std::vector<Candidate> all = remedies(base, options, {.memory_bytes = memory}, 3);
    ASSERT_THAT(all, Not(IsEmpty()));
    for (const Candidate& c : all) EXPECT_THAT(c.changes, Not(IsEmpty())) << memory;
  }
}

const Words kSmall = {"--strategy", "auto", "--dim", "64", "--heads", "4", "--layers", "2"};

// Fixed settings stay, and the rest has the bits of optim_grads_params.
TEST(StrategyChoice, IsTheFastestOfTheFullEnumeration) {
  for (const Words& more :
       {Words{"--ranks", "4", "--batch", "8"}, Words{"--ranks", "4", "--batch", "8", "--layout", "even_rows"},
        Words{"--ranks", "3", "--batch", "6", "--optimizer", "muon"},
        Words{"--ranks", "4", "--batch", "8", "--optimizer", "muon", "--grad-accum", "2"},
        Words{"--ranks", "4", "--batch", "8", "--recompute", "blocks", "--replicas", "2"}}) {
    const TrainConfig given = parse(kSmall + more);
    SearchOptions options = options_of("cpu", 4);
    options.tolerance = 0.005;
    TrainConfig base = given;
    base.strategy = sherd::Strategy::optim_grads_params;
    Constraints constraints{
        .fixed = {kSearched.begin(), kSearched.end()}, .keep_bits = true, .names_no_folder = true};
    for (const std::string& name : given.chosen) constraints.fixed.erase(name);
    Search every(base, options);
    const SearchResult all = every.enumerate(constraints);
    const auto [least, most] = std::ranges::minmax(all.candidates, {}, &Candidate::bytes);
    for (int part = 0; part <= 4; ++part) {
      const int64_t limit = least.bytes + (most.bytes - least.bytes) * part / 4;
      constraints.memory_bytes = options.hardware.memory_bytes = limit;
      const StrategyChoice choice = choose_strategy(given, options);
      double fastest = 1e9;
      for (const Candidate& c : every.enumerate(constraints).candidates)
        if (c.fits) fastest = std::min(fastest, c.time.total);
      EXPECT_LE(seconds_of(choice.config, options), fastest * 1.00501) << choice.reason;
      for (const std::string& name : kSearched)
        if (std::ranges::count(given.chosen, name) == 0) {
          EXPECT_THAT(changed_flags(choice.config, given, [&](std::string_view n) { return n == name; }),
                      IsEmpty());
        }
      EXPECT_THAT(choice.reason, HasSubstr("the fastest that fits: "));
    }
    options.hardware.memory_bytes = least.bytes / 2;
    EXPECT_THAT(message_of<sherd::OutOfMemory>([&] { (void)choose_strategy(given, options); }),
                HasSubstr("--strategy auto: no run fits in"));
  }
}

TEST(StrategyChoice, FindsWhatFitsAfterTheBudgetOfDryRuns) {
  const TrainConfig given = parse(kSmall + Words{"--ranks", "4", "--batch", "64", "--optimizer", "muon"});
  SearchOptions options = options_of("h100", 4);
  const auto with = [&](const Words& flags) {
    TrainConfig c = given;
    c.chosen.clear();
    c.strategy = sherd::Strategy::optim_grads_params;
    c.prefetch = 0;
    c.recompute = parse(flags).recompute;
    const sherd::RankForecast f = forecast(c, 0, options.forecast).rank;
    return f.peak_bytes + f.by_class.at("slack");
  };
  options.most_work = 1;
  options.hardware.memory_bytes = with({"--recompute", "blocks"}) * 101 / 100;
  const StrategyChoice choice = choose_strategy(given, options);
  EXPECT_THAT(choice.reason, HasSubstr(" dry runs: "));
  options.hardware.memory_bytes = 1 << 20;
  EXPECT_THAT(message_of<sherd::OutOfMemory>([&] { (void)choose_strategy(given, options); }),
              HasSubstr(" that were planned fits in 99 % of 1.0 MiB"));
}

TEST(StrategyChoice, ReportsTheErrorOfARunThatCannotBe) {
  const TrainConfig given = parse(kSmall + Words{"--ranks", "2", "--batch", "8", "--route", "nosuch=muon"});
  EXPECT_THAT(message_of<sherd::InvalidArgument>([&] { (void)choose_strategy(given, options_of("cpu", 2)); }),
              HasSubstr("nosuch"));
}

TEST(StrategyChoice, NamesFlagsWithoutEffect) {
  const TrainConfig given = parse(kSmall + Words{"--ranks", "2", "--batch", "8", "--check-replicas", "1"});
  SearchOptions options = options_of("cpu", 2);
  const StrategyChoice choice = choose_strategy(given, options);
  EXPECT_EQ(choice.reason.find("; --check-replicas without effect on it") != std::string::npos,
            choice.config.strategy == sherd::Strategy::optim_grads_params)
      << choice.reason;
}

}  // namespace
}  // namespace train_gpt
