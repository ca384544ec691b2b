// Whole parameters: the three packing rules, and layouts and buffers made of them.
#include <sherd/dtensor/packing.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <sherd/base/error.h>
#include <sherd/dtensor/layer_wise.h>

#include "support/message_of.h"

namespace sherd {
namespace {

using Ranks = std::vector<std::vector<int>>;

/// Items of each rank in the order of their places.
Ranks by_rank(const Packed& packed, int world) {
  Ranks ranks(static_cast<size_t>(world));
  for (size_t i = 0; i < packed.rank.size(); ++i) ranks[packed.rank[i]].push_back(static_cast<int>(i));
  for (auto& r : ranks)
    std::sort(r.begin(), r.end(), [&](int a, int b) { return packed.offset[a] < packed.offset[b]; });
  return ranks;
}

Ranks deal(const std::vector<int64_t>& numels, int world, Packing rule) {
  std::vector<PackItem> items;
  for (int64_t n : numels) items.push_back({n, static_cast<double>(n)});
  std::vector<double> cost(static_cast<size_t>(world));
  return by_rank(pack(items, world, rule, cost), world);
}

TEST(Packing, ShardDivisorsMakeBucketsAMultipleOf128ElementsAndOfTheWorld) {
  for (const auto& [world, divisor] :
       {std::pair{1, 128}, {2, 64}, {3, 128}, {4, 64}, {5, 128}, {6, 64}, {8, 64}, {128, 64}, {4096, 64}}) {
    EXPECT_EQ(shard_divisor(world), divisor) << world;
    EXPECT_EQ(world * shard_divisor(world) % 128, 0);
  }
}

TEST(Packing, PingPongTurnsRoundAtBothEnds) {
  const Ranks want = {{0, 7, 8}, {1, 6, 9}, {2, 5}, {3, 4}};
  EXPECT_EQ(deal({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4, Packing::ping_pong), want);
  EXPECT_EQ(deal(std::vector<int64_t>(10, 64), 4, Packing::ping_pong), want);  // equal ones in model order
  EXPECT_EQ(deal({30, 10, 20}, 2, Packing::ping_pong), (Ranks{{1}, {2, 0}}));
}

TEST(Packing, SizeMatchGivesEqualOnesInRoundsAndFillsWithSmallerOnes) {
  // Backward: 5 (64) seeds, 3 and 1 are as large; then 4 (256) seeds with 2 and 0.
  EXPECT_EQ(deal({256, 64, 256, 64, 256, 64}, 3, Packing::size_match), (Ranks{{5, 4}, {3, 2}, {1, 0}}));
  // The large last one seeds; the largest smaller ones fill its round.
  EXPECT_EQ(deal({100, 300, 200, 1000}, 4, Packing::size_match), (Ranks{{3}, {1}, {2}, {0}}));
  // A larger one does not fit a smaller one's round: padding.
  EXPECT_EQ(deal({1000, 100}, 2, Packing::size_match), (Ranks{{1, 0}, {}}));
  std::vector<double> cost(2);
  const std::vector<PackItem> items = {{1000, 1}, {100, 1}};
  const Packed packed = pack(items, 2, Packing::size_match, cost);
  EXPECT_EQ(packed.offset[0], 128);
  EXPECT_EQ(packed.slice, 1152);
}

TEST(Packing, LptPlacesTheMostExpensiveFirstByAccumulatedCost) {
  // Costs 9, 8, 4, 3, 3 of equal sizes; rank 1 starts with cost 10. 1.3 * 5 / 2 leaves room for three on a
  // rank.
  const std::vector<PackItem> items = {{64, 3}, {64, 9}, {64, 4}, {64, 8}, {64, 3}};
  std::vector<double> cost = {0, 10};
  const Packed packed = pack(items, 2, Packing::lpt, cost);
  // 9 -> rank 0 (9); 8 -> rank 0 (17); 4 -> rank 1 (14); the later 3 -> rank 1 (17); tie: rank 0 (20).
  EXPECT_EQ(by_rank(packed, 2), (Ranks{{1, 3, 0}, {2, 4}}));
  EXPECT_THAT(cost, ElementsAre(20, 17));
}

TEST(Packing, LptFillsNoRankBeyondTheCapWhileAnotherHasRoom) {
  // Everything would go to the free rank 0, but 1.3 * 256 / 2 = 166 elements are the most it takes.
  const std::vector<PackItem> items(4, PackItem{64, 1});
  std::vector<double> cost = {0, 100};
  const Packed packed = pack(items, 2, Packing::lpt, cost);
  EXPECT_EQ(by_rank(packed, 2), (Ranks{{3, 2}, {1, 0}}));
  // One that is above the cap everywhere goes to the emptiest rank, whatever that costs.
  const std::vector<PackItem> huge = {{1024, 9}, {64, 5}, {64, 5}};
  std::vector<double> carried = {100, 0};
  EXPECT_EQ(pack(huge, 2, Packing::lpt, carried).rank[0], 0);
}

// The rule again, as plainly as it can be written.
Ranks plain_lpt(const std::vector<PackItem>& items, int world, std::vector<double>& cost) {
  const auto pad = [](int64_t n) { return (n + 63) / 64 * 64; };
  std::vector<int> order;
  for (int i = static_cast<int>(items.size()) - 1; i >= 0; --i) order.push_back(i);
  for (size_t a = 1; a < order.size(); ++a)  // insertion sort: stable
    for (size_t b = a; b > 0 && items[order[b - 1]].cost < items[order[b]].cost; --b)
      std::swap(order[b - 1], order[b]);
  int64_t total = 0;
  for (auto& i : items) total += i.numel;
  std::vector<int64_t> fill(static_cast<size_t>(world));
  Ranks ranks(static_cast<size_t>(world));
  for (int i : order) {
    std::vector<int> candidates;
    for (int r = 0; r < world; ++r)
      if (static_cast<double>(pad(fill[r]) + items[i].numel) <= 1.3 * static_cast<double>(total) / world)
        candidates.push_back(r);
    int best;
    if (candidates.empty()) {
      best = static_cast<int>(std::min_element(fill.begin(), fill.end()) - fill.begin());
    } else {
      best = *std::min_element(candidates.begin(), candidates.end(),
                               [&](int a, int b) { return cost[a] < cost[b]; });
    }
    fill[best] = pad(fill[best]) + items[i].numel;
    cost[best] += items[i].cost;
    ranks[best].push_back(i);
  }
  return ranks;
}

TEST(Packing, LptAgreesWithAPlainRewritingOnRandomModels) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    const int world = static_cast<int>(1 + below(9));
    std::vector<double> cost(static_cast<size_t>(world)), want_cost;
    for (double& c : cost) c = trial % 2 == 0 ? 0 : static_cast<double>(below(5000));
    want_cost = cost;
    for (int bucket = 0; bucket < 3; ++bucket) {
      std::vector<PackItem> items;
      for (int64_t i = below(40); i >= 0; --i) {
        const LayoutParam p{"p", {1 + below(40), 1 + below(trial % 3 == 0 ? 2 : 40)}};
        items.push_back({numel_of(p.shape), packing_cost(p)});
      }
      const Packed packed = pack(items, world, Packing::lpt, cost);
      ASSERT_EQ(by_rank(packed, world), plain_lpt(items, world, want_cost)) << trial;
      ASSERT_EQ(cost, want_cost);
    }
  }
}

TEST(WholeParam, DefaultCostsAreNewtonSchulzOfMatricesAndElementsOfTheRest) {
  EXPECT_EQ(packing_cost({"m", {3, 5}}), 45);
  EXPECT_EQ(packing_cost({"m", {5, 3}}), 45);
  EXPECT_EQ(packing_cost({"stack", {4, 5, 3}}), 60);
  EXPECT_EQ(packing_cost({"v", {7}}), 7);
  EXPECT_EQ(packing_cost({"s", {}}), 1);
  EXPECT_EQ(packing_cost({"m", {3, 5}, CutClass::row, 2.5}), 2.5);
}

TEST(WholeParam, IsStoredOnOneRankContiguousInBothBuffers) {
  LayoutOptions options;
  options.policy = LayoutPolicy::whole_param;
  const auto l = ShardLayout::make(
      {{"a", {10, 10}, CutClass::row}, {"b", {20}}, {"c", {10, 10}, CutClass::row}}, 2, options);
  EXPECT_TRUE(l.zero_copy());
  EXPECT_TRUE(l.cut_rows().empty());
  EXPECT_EQ(l.slice(), 192);  // "a" and "b" on rank 1: 100, padded to 128, and 20; rounded up to 64
  EXPECT_EQ(l.piece(ParamId(2), RankId(0)), (ParamRange{ParamIndex(0), ParamIndex(100)}));
  EXPECT_EQ(l.piece(ParamId(2), RankId(1)), (ParamRange{ParamIndex(100), ParamIndex(100)}));
  EXPECT_EQ(l.piece(ParamId(0), RankId(0)), (ParamRange{ParamIndex(0), ParamIndex(0)}));
  EXPECT_EQ(l.boxes(ParamId(0), RankId(1)), (std::vector<Box>{{{0, 0}, {10, 10}}}));
  EXPECT_EQ(l.padding(), 384 - 220);
  EXPECT_THAT(l.describe(),
              HasSubstr("whole_param:lpt layout of 3 parameters with 220 elements over 2 ranks\n"
                        "slice 192 elements, padding 164 (74.55 %), 0 rows cut"));
  EXPECT_EQ(std::accumulate(l.rank_cost().begin(), l.rank_cost().end(), 0.0), 2020);
}

TEST(WholeParam, PackingAndCarriedCostChangeTheFingerprint) {
  const std::vector<LayoutParam> params = {{"a", {4, 4}, CutClass::row}};
  std::vector<uint64_t> prints;
  for (Packing p : {Packing::lpt, Packing::size_match, Packing::ping_pong})
    prints.push_back(
        ShardLayout::make(params, 2, {.policy = LayoutPolicy::whole_param, .packing = p}).fingerprint());
  prints.push_back(ShardLayout::make(params, 2, {.policy = LayoutPolicy::whole_param, .carried_cost = {0, 1}})
                       .fingerprint());
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::unique(prints.begin(), prints.end()), prints.end());
}

TEST(WholeParam, SmallBucketsLoadTheRanksWithLeastCarriedCostIfAsked) {
  LayoutOptions options{.policy = LayoutPolicy::whole_param, .carried_cost = {5, 0, 7, 0}};
  const std::vector<LayoutParam> one = {{"a", {8, 8}, CutClass::row}};
  EXPECT_FALSE(ShardLayout::make(one, 4, options).piece(ParamId(0), RankId(0)).empty())
      << "the rule: of equal fills the lowest rank";
  options.order_by_carried_cost = true;
  for (Packing rule : {Packing::lpt, Packing::size_match, Packing::ping_pong}) {
    options.packing = rule;
    const auto l = ShardLayout::make(one, 4, options);
    EXPECT_FALSE(l.piece(ParamId(0), RankId(1)).empty());
    EXPECT_THAT(l.rank_cost(), ElementsAre(5, 512, 7, 0));
  }
}

TEST(WholeParam, BadCostsAreRefusedTogether) {
  const std::string message = [] {
    try {
      (void)ShardLayout::make({{"w", {2}, CutClass::row, -1}, {"v", {2}, CutClass::row, NAN}}, 2,
                              {.policy = LayoutPolicy::whole_param, .carried_cost = {1, -2, 3}});
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string();
  }();
  for (const char* part :
       {"'w': cost -1", "'v': cost nan", "carried_cost has 3 entries", "negative or not finite"})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(ParseLayout, ReadsWhatItWrites) {
  for (const char* text :
       {"ragged", "even_rows", "whole_param:lpt", "whole_param:size_match", "whole_param:ping_pong"})
    EXPECT_EQ(to_string(parse_layout(text)), text);
  EXPECT_EQ(parse_layout("whole_param"), (LayoutChoice{LayoutPolicy::whole_param, Packing::lpt}));
  for (const char* text : {"", "Ragged", "ragged:lpt", "whole_param:", "whole_param:fifo", "lpt"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_layout(text); }),
                HasSubstr("ragged, even_rows, whole_param, whole_param:lpt, whole_param:size_match, "
                          "whole_param:ping_pong"));
  }
}

}  // namespace
}  // namespace sherd
