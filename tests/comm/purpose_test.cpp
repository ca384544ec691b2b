// Purposes of calls, and comparisons of ranks.

#include <atomic>
#include <limits>
#include <mutex>
#include <numeric>

#include <sherd/comm/core/require_equal.h>
#include <sherd/comm/core/same_value.h>

#include "comm/integer_tensors.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

TEST(PurposeOfCalls, HoldsForAScopeAndIsNotInherited) {
  run_ranks(2, [](RankContext& c) {
    const Purpose inner("inner");
    c.world->serve(Purpose("outer"));
    {
      const Serving serving(*c.world, inner);
      EXPECT_EQ(c.world->serves().text(), "inner");
      EXPECT_EQ(c.world->clone()->serves().text(), "");
    }
    EXPECT_EQ(c.world->serves().text(), "outer");
    EXPECT_NE(c.world->serves().hash(), inner.hash());
    EXPECT_FALSE(Purpose(""));
    c.device->compute().synchronize();
  });
}

TEST(DigestOfCalls, DependsOnOrderPurposeVerbAndSizeButNotOnCallsWithoutAPurpose) {
  const auto digests = [](const std::function<void(Communicator&, Communicator&, Stream&)>& odd) {
    std::mutex mutex;
    std::vector<std::string> here;
    run_ranks(2, [&](RankContext& c) {
      const auto clone = c.world->clone();
      Stream& s = c.device->compute();
      // Each on its own: what is compared here differs between two runs, not between the ranks of one.
      odd(*c.world, *clone, s);
      s.synchronize();
      {
        std::lock_guard lock(mutex);
        here.push_back(std::to_string(c.world->digest()));
      }
      EXPECT_EQ(clone->digest(), c.world->digest());
      c.world->reset_digest();
      EXPECT_EQ(clone->digest(), 0u);
    });
    const auto got = from_all_processes(here);
    EXPECT_THAT(got, SizeIs(2));
    EXPECT_EQ(got.front(), got.back());
    return got.front();
  };
  const auto call = [](Communicator& comm, Stream& s, const char* purpose, int64_t n) {
    const Serving serving(comm, Purpose(purpose));
    comm.all_reduce(s, make_tensor(comm.device(), DType::f32, poison(n)));
  };
  const std::vector<std::string> all{
      digests([&](auto& a, auto& b, auto& s) { call(a, s, "x", 4), call(b, s, "y", 4); }),
      digests([&](auto& a, auto& b, auto& s) { call(a, s, "y", 4), call(b, s, "x", 4); }),
      digests([&](auto& a, auto& b, auto& s) { call(a, s, "x", 4), call(b, s, "y", 5); }),
      digests([&](auto& a, auto& b, auto& s) { call(a, s, "x", 4), call(b, s, "y", 4), call(b, s, "y", 4); }),
      digests([&](auto& a, auto&, auto& s) {
        const Serving serving(a, Purpose("x"));
        a.broadcast(s, make_tensor(a.device(), DType::f32, poison(4)), 0);
      })};
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " " << j;
  EXPECT_EQ(all[0], digests([&](auto& a, auto& b, auto& s) {
              call(a, s, "", 9), call(a, s, "x", 4), call(b, s, "y", 4), call(b, s, "", 1);
              const auto beside = a.side_channel(std::chrono::hours(1));
              beside->serve(Purpose("x"));
              beside->barrier(s);
            }));
}

TEST(SameValueInASum, IsExactForManyRanksAndAnyValues) {
  const uint64_t top = std::numeric_limits<uint64_t>::max();
  const auto verdict = [](const std::vector<uint64_t>& values) {
    SameValue::Words sums{};
    for (const uint64_t v : values)
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += SameValue::encode(v)[i];
    return SameValue::all_equal(sums);
  };
  for (const uint64_t v : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, top, uint64_t{0x0123456789abcdef}})
    for (const size_t ranks : {1u, 2u, 3u, 64u, 16384u}) {
      std::vector<uint64_t> values(ranks, v);
      EXPECT_TRUE(verdict(values)) << v << " on " << ranks;
      if (ranks == 1) continue;
      for (const uint64_t other : {v ^ 1, v ^ (uint64_t{1} << 63), ~v, v + 0x10000, v - 1}) {
        values.back() = other;
        EXPECT_FALSE(verdict(values)) << v << " and " << other << " on " << ranks;
      }
    }
  EXPECT_FALSE(verdict({0, 2, 1}));  // the mean is one of them
  EXPECT_FALSE(verdict({0x0001'0000, 0x0000'0001, 0x0001'0001, 0}));
}

TEST(SameValueInASum, RidesOnAnAllReduce) {
  run_ranks(3, [](RankContext& c) {
    for (const bool alike : {true, false}) {
      const auto words = SameValue::encode(alike || c.world->rank() < 2 ? 77u : 78u);
      const Tensor sums = Tensor::empty(*c.device, {SameValue::kWords}, DType::i64, "test");
      std::copy(words.begin(), words.end(), sums.data<int64_t>());
      c.world->all_reduce(c.device->compute(), sums);
      c.device->compute().synchronize();
      EXPECT_EQ(SameValue::all_equal({sums.data<int64_t>(), SameValue::kWords}), alike);
    }
  });
}

TEST(RequireEqual, NamesTheRanksThatDifferOnEveryRank) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_ranks(5, [&](RankContext& c) {
    Stream& s = c.device->compute();
    require_equal(*c.world, s, 7, "unused");
    const auto odd = c.world->split(c.world->rank() % 2, 0);
    try {
      require_equal(*odd, s, c.world->rank() == 4 ? 8 : 7, "the plans differ");
    } catch (const RanksDiffer& e) {
      EXPECT_EQ(e.ranks(), std::vector{4});
      std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
    }
    require_equal(*c.world, s, 9, "it goes on");
  });
  const auto all = from_all_processes(texts);
  EXPECT_THAT(all, SizeIs(3));
  EXPECT_THAT(all, Each(testing::StrEq("the plans differ: rank 4 (0000000000000008) differs from the others "
                                       "(0000000000000007)")));
}

TEST(CompareValues, SaysForEachValueWhichRanksAreOdd) {
  run_ranks(4, [](RankContext& c) {
    const auto rank = static_cast<uint64_t>(c.world->rank());
    const std::vector<uint64_t> mine{5, rank == 0 ? 9u : 7u, rank};
    const auto found = compare_values(*c.world, c.device->compute(), mine, {}, ValueIs::count);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_TRUE(found[0].equal());
    EXPECT_EQ(found[0].text, "");
    EXPECT_EQ(found[1].odd_ranks, std::vector{0});
    EXPECT_EQ(found[1].text, "rank 0 (9) differs from the others (7)");
    EXPECT_EQ(found[2].odd_ranks, (std::vector{1, 2, 3}));
    EXPECT_EQ(found[2].text, "ranks 1 (1), 2 (2), 3 (3) differ from the others (0)");
    EXPECT_TRUE(compare_values(*c.world, c.device->compute(), {}).empty());
  });
}

}  // namespace
}  // namespace sherd::test
