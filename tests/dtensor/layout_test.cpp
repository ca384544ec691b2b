// Layouts of real transformer units, and the edges.
#include <sherd/dtensor/layout.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd {
namespace {

using Params = std::vector<LayoutParam>;
constexpr auto kRow = CutClass::row;
constexpr auto kElement = CutClass::element;

Params gpt_block(int64_t d) {
  return {{"ln1", {d}, kElement}, {"qkv", {3 * d, d}, kRow}, {"proj", {d, d}, kRow},
          {"ln2", {d}, kElement}, {"fc", {4 * d, d}, kRow},  {"out", {d, 4 * d}, kRow}};
}

Params llama_block(int64_t d, int64_t ff) {
  return {{"norm1", {d}, kElement}, {"q", {d, d}, kRow},   {"k", {d, d}, kRow},
          {"v", {d, d}, kRow},      {"o", {d, d}, kRow},   {"norm2", {d}, kElement},
          {"gate", {ff, d}, kRow},  {"up", {ff, d}, kRow}, {"down", {d, ff}, kRow}};
}

Params root_unit(int64_t vocab, int64_t d) { return {{"wte", {vocab, d}, kElement}, {"ln", {d}, kElement}}; }

int64_t total_of(const Params& params) {
  int64_t total = 0;
  for (const auto& p : params) total += numel_of(p.shape);
  return total;
}

size_t cuts(const Params& params, int world, int rotation = 0) {
  LayoutOptions options;
  options.rotation = rotation;
  return ShardLayout::make(params, world, options).cut_rows().size();
}

TEST(Layout, RealUnitsStayInThePaddingBudgetAtEveryWorldSize) {
  for (const Params& unit : {gpt_block(384), gpt_block(768), llama_block(4096, 11008),
                             llama_block(5120, 13696), root_unit(50257, 768)})
    for (int world :
         {1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 200, 256, 384, 512, 768, 1000, 1024}) {
      const auto l = ShardLayout::make(unit, world);
      const int64_t total = total_of(unit);
      const int64_t unavoidable = world * (((total + world - 1) / world + 63) / 64 * 64);
      EXPECT_LE(l.buffer_elements(), std::max(unavoidable, total + total * 3 / 100)) << l.describe();
      EXPECT_EQ(l.slice() % 64, 0);
      for (int p = 0; p < static_cast<int>(unit.size()); ++p) {
        EXPECT_EQ(l.piece(ParamId(p), RankId(0)).begin.value, 0);
        EXPECT_EQ(l.piece(ParamId(p), RankId(world - 1)).end.value, numel_of(unit[p].shape));
      }
    }
}

TEST(Layout, NoPieceBeginsInsideOfAGranule) {
  for (Params unit : {gpt_block(384), llama_block(5120, 13696), root_unit(50257, 768), root_unit(257, 64)}) {
    for (LayoutParam& p : unit)
      while (p.shape.size() > 1 && p.granule < 256 && row_size(p.shape) % (2 * p.granule) == 0)
        p.granule *= 2;
    for (const LayoutPolicy policy :
         {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
      for (const int world : {1, 2, 3, 7, 8, 100, 256})
        for (const int rotation : {0, 1, 5}) {
          LayoutOptions options{.policy = policy};
          options.rotation = rotation;
          const auto l = ShardLayout::make(unit, world, options);
          const int64_t total = total_of(unit),
                        unavoidable = world * (((total + world - 1) / world + 255) / 256 * 256);
          if (policy == LayoutPolicy::ragged) {
            EXPECT_LE(l.buffer_elements(), std::max(unavoidable, total + total * 3 / 100)) << l.describe();
          }
          for (int p = 0; p < static_cast<int>(unit.size()); ++p)
            for (int r = 0; r < world; ++r)
              ASSERT_EQ(l.piece(ParamId(p), RankId(r)).begin.value % unit[p].granule, 0)
                  << unit[p].name << " rank " << r << "\n"
                  << l.describe();
        }
  }
  LayoutParam odd{"odd", {3, 96}};
  odd.granule = 64;
  EXPECT_NE(message_of<InvalidArgument>([&] {
              (void)ShardLayout::make({odd}, 2);
            }).find("granule 64 is not a power of 2 that divides a row"),
            std::string::npos);
}

TEST(Layout, RowsStayWholeWhereverASimpleAlignedSolutionExists) {
  for (int rotation = 0; rotation < 9; ++rotation) {
    for (int world : {1, 2, 3, 4, 6, 8, 16, 32}) {
      EXPECT_EQ(cuts(gpt_block(384), world, rotation), 0u) << world;
      EXPECT_EQ(cuts(gpt_block(768), world, rotation), 0u) << world;
    }
    for (int world : {2, 8, 16, 64}) {
      EXPECT_EQ(cuts(llama_block(4096, 11008), world, rotation), 0u) << world;
      EXPECT_EQ(cuts(llama_block(5120, 13696), world, rotation), 0u) << world;
    }
  }
}

TEST(Layout, WhereSomeRowsMustBeCutMostAreNot) {
  // 256 boundaries; slices that fit both row widths would need 11 % and 77 % padding.
  EXPECT_LE(cuts(llama_block(4096, 11008), 256), 53u);
  EXPECT_LE(cuts(llama_block(5120, 13696), 256), 54u);
}

TEST(Layout, AMatrixOverOneBoundaryNeedsOnlyAGap) {
  // 100 rows of 7: no slice that is a multiple of 64 is a multiple of 7 within 3 %.
  LayoutOptions options;
  options.padding_budget = 0.1;
  const auto l = ShardLayout::make({{"w", {100, 7}, kRow}}, 2, options);
  EXPECT_TRUE(l.cut_rows().empty()) << l.describe();
  EXPECT_EQ(l.slice(), 384);
  EXPECT_EQ(l.piece(ParamId(0), RankId(0)).size() % 7, 0);
  EXPECT_GT(l.full_range(ParamId(0)).begin.value, 0);
}

TEST(Layout, AlignedRowsNeedNoPaddingAtAll) {
  const auto l = ShardLayout::make({{"a", {8, 64}, kRow}, {"b", {8, 128}, kRow}}, 4);
  EXPECT_EQ(l.padding(), 0);
  EXPECT_TRUE(l.cut_rows().empty());
}

TEST(Layout, ParametersOnlyChangePlacesWhenThatSavesRows) {
  const auto plain = ShardLayout::make(gpt_block(384), 4);
  for (int p = 1; p < 6; ++p)
    EXPECT_GT(plain.full_range(ParamId(p)).begin, plain.full_range(ParamId(p - 1)).begin);
  LayoutOptions options;
  options.rotation = 2;  // proj first, qkv last
  const auto rotated = ShardLayout::make(gpt_block(384), 4, options);
  EXPECT_EQ(rotated.full_range(ParamId(2)).begin.value, 0);
  EXPECT_GT(rotated.full_range(ParamId(1)).begin, rotated.full_range(ParamId(5)).begin);
}

TEST(Layout, EmptySlicesRotateSoThatNoRankIsIdleInEveryUnit) {
  constexpr int kWorld = 256;
  std::vector<int> used(kWorld);
  for (int rotation = 0; rotation < 6; ++rotation) {
    LayoutOptions options;
    options.rotation = rotation;
    const auto l = ShardLayout::make(gpt_block(768), kWorld, options);
    for (int p = 0; p < 6; ++p)
      for (int r = 0; r < kWorld; ++r) used[r] += !l.piece(ParamId(p), RankId(r)).empty();
  }
  EXPECT_THAT(used, testing::Each(testing::Gt(0)));
}

TEST(Layout, StateBytesPerRankStayEvenOverAModel) {
  // AdamW keeps two f32 states per element (here: what may be cut anywhere), Muon one.
  struct Model {
    Params block, root;
    int layers;
  };
  for (const Model& m : {Model{gpt_block(768), root_unit(50257, 768), 12},
                         Model{llama_block(4096, 11008), root_unit(32000, 4096), 32}})
    for (int world : {8, 64, 256, 1024}) {
      std::vector<double> bytes(world);
      for (int unit = 0; unit <= m.layers; ++unit) {
        LayoutOptions options;
        options.rotation = unit;
        const auto l = ShardLayout::make(unit < m.layers ? m.block : m.root, world, options);
        for (int p = 0; p < static_cast<int>(l.params().size()); ++p)
          for (int r = 0; r < world; ++r)
            bytes[r] += static_cast<double>(l.piece(ParamId(p), RankId(r)).size()) *
                        (l.params()[p].cut == kElement ? 8 : 4);
      }
      const double mean = std::accumulate(bytes.begin(), bytes.end(), 0.0) / world;
      EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()) / mean, 1.03) << world;
    }
}

TEST(Layout, OneRankHasNoPaddingButAlignment) {
  const auto l = ShardLayout::make({{"w", {5, 3}, kRow}, {"b", {1}}, {"s", {}}}, 1);
  EXPECT_EQ(l.slice(), 64);
  EXPECT_EQ(l.padding(), 64 - 17);
  EXPECT_TRUE(l.cut_rows().empty());
}

TEST(Layout, MoreRanksThanElements) {
  LayoutOptions options;
  options.align = 1;
  const auto l = ShardLayout::make({{"w", {2, 2}, kRow}, {"s", {}, kRow}}, 16, options);
  EXPECT_EQ(l.slice(), 1);
  EXPECT_EQ(l.cut_rows().size(), 2u);  // both rows of w, on any rank
  EXPECT_EQ(l.piece(ParamId(0), RankId(15)), (ParamRange{ParamIndex(4), ParamIndex(4)}));
  EXPECT_EQ(l.boxes(ParamId(1), RankId(15)).size(), 0u);
}

TEST(Layout, ParametersWithoutElements) {
  for (auto policy : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
    LayoutOptions options;
    options.policy = policy;
    const auto l = ShardLayout::make({{"none", {0, 5}, kRow}, {"flat", {3, 0}, kRow}}, 4, options);
    EXPECT_EQ(l.slice(), 64);
    EXPECT_EQ(l.padding(), 256);
    EXPECT_TRUE(l.piece(ParamId(0), RankId(2)).empty());
    EXPECT_TRUE(l.boxes(ParamId(1), RankId(2)).empty());
  }
}

TEST(Layout, EvenRowsPadsExpertsTwofold) {
  LayoutOptions options;
  options.policy = LayoutPolicy::even_rows;
  const auto l = ShardLayout::make({{"experts", {128, 8, 8}, kRow}}, 256, options);
  EXPECT_EQ(l.slice(), 64);
  EXPECT_EQ(l.padding(), 128 * 64);
  EXPECT_EQ(l.full_elements(), 128 * 64);
  EXPECT_TRUE(l.piece(ParamId(0), RankId(200)).empty());
  EXPECT_FALSE(l.zero_copy());
}

TEST(Layout, TheExampleOfTheHeaderIsSo) {
  const std::vector<LayoutParam> params = {
      {"norm", {16}}, {"up", {24, 16}, CutClass::row}, {"down", {16, 24}, CutClass::row}};
  const auto places =
      [&](const ShardLayout& l) {  // begin in the full buffer; begin, end and place of each piece
        std::vector<std::vector<int64_t>> all;
        for (int p = 0; p < 3; ++p) {
          all.push_back({l.full_range(ParamId(p)).begin.value});
          for (int r = 0; r < 4; ++r)
            if (!l.piece(ParamId(p), RankId(r)).empty())
              for (const int64_t v :
                   {l.piece(ParamId(p), RankId(r)).begin.value, l.piece(ParamId(p), RankId(r)).end.value,
                    l.local_begin(ParamId(p), RankId(r)).value})
                all.back().push_back(v);
        }
        return all;
      };
  using Places = std::vector<std::vector<int64_t>>;
  const ShardLayout ragged = ShardLayout::make(params, 4);
  EXPECT_EQ(ragged.slice(), 256);
  EXPECT_EQ(places(ragged),
            (Places{{0, 0, 16, 0}, {16, 0, 240, 16, 240, 384, 0}, {528, 0, 240, 16, 240, 384, 0}}));
  const ShardLayout even = ShardLayout::make(params, 4, {.policy = LayoutPolicy::even_rows});
  EXPECT_EQ(even.full_elements(), 784);
  EXPECT_EQ(places(even), (Places{{0, 0, 4, 0, 4, 8, 0, 8, 12, 0, 12, 16, 0},
                                  {16, 0, 96, 4, 96, 192, 4, 192, 288, 4, 288, 384, 4},
                                  {400, 0, 96, 100, 96, 192, 100, 192, 288, 100, 288, 384, 100}}));
  const ShardLayout whole = ShardLayout::make(params, 4, {.policy = LayoutPolicy::whole_param});
  EXPECT_EQ(whole.slice(), 384);
  EXPECT_EQ(places(whole), (Places{{768, 0, 16, 0}, {384, 0, 384, 0}, {0, 0, 384, 0}}));
}

TEST(Layout, FingerprintsDifferBetweenLayouts) {
  const Params base = {{"a", {30, 7}, kRow}, {"b", {11}, kElement}};
  std::vector<uint64_t> prints = {ShardLayout::make(base, 4).fingerprint()};
  const auto add = [&](int world, const std::function<void(Params&, LayoutOptions&)>& change) {
    Params params = base;
    LayoutOptions options;
    change(params, options);
    prints.push_back(ShardLayout::make(params, world, options).fingerprint());
  };
  add(5, [](Params&, LayoutOptions&) {});
  add(4, [](Params& p, LayoutOptions&) { p[0].name = "c"; });
  add(4, [](Params& p, LayoutOptions&) { p[0].shape = {7, 30}; });
  add(4, [](Params& p, LayoutOptions&) { p[0].shape = {30, 7, 1}; });
  add(4, [](Params& p, LayoutOptions&) { p[0].cut = kElement; });
  add(4, [](Params& p, LayoutOptions&) { std::swap(p[0], p[1]); });
  add(4, [](Params& p, LayoutOptions&) { p.push_back({"none", {0}, kElement}); });
  add(4, [](Params&, LayoutOptions& o) { o.policy = LayoutPolicy::even_rows; });
  add(4, [](Params&, LayoutOptions& o) { o.align = 32; });
  add(4, [](Params&, LayoutOptions& o) { o.padding_budget = 0.04; });
  add(4, [](Params&, LayoutOptions& o) { o.rotation = 1; });
  for (size_t i = 0; i < prints.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(prints[i], prints[j]) << i << " and " << j;
}

TEST(Layout, FingerprintIsTheSameInEveryBuild) {
  // Ranks of one run may be different binaries; a changed search must show here.
  EXPECT_EQ(ShardLayout::make({{"a", {30, 7}, kRow}, {"b", {11}, kElement}}, 4).fingerprint(),
            3002670245131178472u);
}

TEST(Layout, DescribeNamesEveryCutRow) {
  LayoutOptions options;
  options.align = 1;
  options.padding_budget = 0;
  const auto l = ShardLayout::make({{"w", {3, 4}, kRow}}, 2, options);
  EXPECT_EQ(l.describe(),
            "ragged layout of 1 parameters with 12 elements over 2 ranks\n"
            "slice 6 elements, padding 0 (0.00 %), 1 rows cut\n"
            "w [3, 4] cut in rows (first rank behind the cut): 1 (1)\n");
}

TEST(Layout, ErrorsNameAllOffenders) {
  LayoutOptions options;
  options.align = 0;
  options.padding_budget = 2;
  try {
    (void)ShardLayout::make({{"w", {3, -4}, kRow}}, 0, options);
    FAIL();
  } catch (const InvalidArgument& e) {
    for (const char* part : {"world is 0", "align is 0", "padding_budget is 2", "'w' of shape [3, -4]"})
      EXPECT_THAT(e.what(), testing::HasSubstr(part));
  }
  EXPECT_THROW((void)ShardLayout::make({}, 2), InvalidArgument);
  options = {};
  options.padding_budget = std::nan("");
  EXPECT_THROW((void)ShardLayout::make({{"w", {3}}}, 2, options), InvalidArgument);
}

TEST(Layout, SizesThatPass64BitsAreRefusedUnderEveryPolicy) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (LayoutPolicy policy : {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
    const auto message = [&](const Shape& shape, int world, int64_t align) -> std::string {
      return message_of<InvalidArgument>([&] {
        (void)ShardLayout::make({{"w", shape, kRow}}, world, {.policy = policy, .align = align});
      });
    };
    EXPECT_THAT(message({kHuge, 3}, 1, 1), testing::HasSubstr("more than 2^63 - 1 elements"))
        << name_of(policy);
    EXPECT_THAT(message({0, kHuge, 4}, 1, 1), testing::HasSubstr("more than 2^63 - 1")) << name_of(policy);
    EXPECT_THAT(message({4}, 8, kHuge),
                testing::HasSubstr("1 parameters (4 elements) on 8 ranks in slices that are a multiple of "
                                   "4611686018427387904 need more elements than 64 bits count; use fewer"))
        << name_of(policy);
    EXPECT_NE(message({1, kHuge}, 4, 64), "nothing was thrown") << name_of(policy);
    EXPECT_EQ(message({1, kHuge >> 10}, 4, 64), "nothing was thrown") << name_of(policy);
  }
}

TEST(Layout, TheSearchIsFast) {
  // Generous limits (sanitizers, busy machines); a Release build takes under a millisecond and about 40.
  const auto ms = [](const Params& params, int world) {
    const auto start = std::chrono::steady_clock::now();
    (void)ShardLayout::make(params, world);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  Params twenty, thousand;
  for (int64_t i = 0; i < 20; ++i)
    twenty.push_back({"p", {4096 + i * 53, 4096 + i % 7 * 160}, i % 5 ? kRow : kElement});
  for (int64_t i = 0; i < 1000; ++i)
    thousand.push_back({"p", {1 + i * 53 % 700, 64 + i * 37 % 911}, i % 3 ? kRow : kElement});
  EXPECT_LT(ms(twenty, 4096), 500);
  EXPECT_LT(ms(thousand, 1000), 5000);
}

}  // namespace
}  // namespace sherd
