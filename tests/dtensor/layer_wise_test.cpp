// Buckets of whole parameters that span units.
#include <sherd/dtensor/layer_wise.h>

#include <algorithm>
#include <random>

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd {
namespace {

std::vector<LayerWiseParam> vectors(const std::vector<int64_t>& numels) {
  std::vector<LayerWiseParam> params;
  for (size_t i = 0; i < numels.size(); ++i)
    params.push_back({{"p" + std::to_string(i), {numels[i]}}, false});
  return params;
}

std::vector<std::vector<std::string>> names(const LayerWiseLayout& l) {
  std::vector<std::vector<std::string>> all;
  for (auto& b : l.buckets) {
    all.emplace_back();
    for (auto& p : b.layout.params()) all.back().push_back(p.name);
  }
  return all;
}

using Names = std::vector<std::vector<std::string>>;

TEST(LayerWise, WithoutASizeThereIsOneBucketAndItIsTheLayoutOfOneUnit) {
  const auto params = vectors({100, 700, 300, 64, 5000});
  const auto l = LayerWiseLayout::make(params, 3, {});
  ASSERT_EQ(l.buckets.size(), 1u);
  std::vector<LayoutParam> plain;
  for (auto& p : params) plain.push_back(p.param);
  const auto unit = ShardLayout::make(plain, 3, {.policy = LayoutPolicy::whole_param});
  EXPECT_EQ(l.buckets[0].layout.fingerprint(), unit.fingerprint());
  EXPECT_EQ(l.elements, unit.buffer_elements());
  EXPECT_EQ(l.padding, unit.padding());
}

TEST(LayerWise, EightEqualOnesInBucketsOfOneRoundMakeFour) {
  const auto l = LayerWiseLayout::make(vectors(std::vector<int64_t>(8, 256)), 2, {.bucket_elements = 512});
  EXPECT_EQ(names(l), (Names{{"p6", "p7"}, {"p4", "p5"}, {"p2", "p3"}, {"p0", "p1"}}));
  EXPECT_EQ(l.padding, 0);
  EXPECT_EQ(l.buckets[3].begin.value, 3 * 512);
}

TEST(LayerWise, TheSizeIsASoftMinimumThatPaddingAbsorbs) {
  // Closing at 5 * 256 would leave a second bucket of one; the sixth fits beside the fifth.
  const auto l =
      LayerWiseLayout::make(vectors(std::vector<int64_t>(6, 256)), 4, {.bucket_elements = 5 * 256});
  EXPECT_EQ(l.buckets.size(), 1u);
  EXPECT_EQ(l.elements, 2048);
  // Written backward: the estimate places 192 192 256 128 128 | 192 although the sorted packing then grows.
  const auto mixed =
      LayerWiseLayout::make(vectors({192, 128, 128, 256, 192, 192}), 2, {.bucket_elements = 448});
  EXPECT_EQ(mixed.buckets.size(), 2u);
  EXPECT_EQ(mixed.elements, 1408);
}

TEST(LayerWise, ALargeParameterKeepsItsBucketOpen) {
  // 0.9 * 4 * 1000 elements must come together, whatever the bucket size.
  std::vector<int64_t> numels(40, 100);
  numels.back() = 1000;
  const auto l = LayerWiseLayout::make(vectors(numels), 4, {.bucket_elements = 100});
  EXPECT_GE(l.buckets[0].layout.params().size(), 27u);
  EXPECT_GT(l.buckets.size(), 1u);
}

TEST(LayerWise, ATiedParameterSitsAlone) {
  auto params = vectors({128, 128, 128, 128, 128});
  params[2].tied = true;
  for (int64_t size : {int64_t{0}, int64_t{1} << 40}) {
    const auto l = LayerWiseLayout::make(params, 2, {.bucket_elements = size});
    EXPECT_EQ(names(l), (Names{{"p3", "p4"}, {"p2"}, {"p0", "p1"}}));
    EXPECT_EQ(l.padding, 128);  // (ranks - 1) * its size
    EXPECT_EQ(l.buckets[1].layout.piece(ParamId(0), RankId(0)).size(), 128);
  }
}

TEST(LayerWise, CostsCarryOverAndFillsDoNot) {
  // Each bucket: one matrix that costs much, three of the same size that do not. Fills alone would send every
  // dear one to rank 0.
  std::vector<LayerWiseParam> params;
  for (int i = 0; i < 4; ++i) {
    params.push_back({{"dear" + std::to_string(i), {128, 128}, CutClass::row, 1e9}, false});
    for (int k = 0; k < 3; ++k) params.push_back({{"cheap", {128, 128}, CutClass::row}, false});
  }
  const auto l = LayerWiseLayout::make(params, 4, {.bucket_elements = 4 * 128 * 128});
  ASSERT_EQ(l.buckets.size(), 4u);
  for (double cost : l.rank_cost()) EXPECT_GE(cost, 1e9) << "every rank has one of the dear ones";
  EXPECT_EQ(l.padding, 0);
}

// The closing rule again, with plain vectors.
std::vector<int> plain_bucket_sizes(const std::vector<LayerWiseParam>& params, int world, int64_t size) {
  const auto pad = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  std::vector<int> sizes;
  std::vector<int64_t> fill;
  int64_t numel = 0, largest = 0;
  int count = 0;
  const auto close = [&] {
    if (count > 0) sizes.push_back(count);
    count = 0;
    numel = largest = 0;
    fill.assign(static_cast<size_t>(world), 0);
  };
  close();
  for (int i = static_cast<int>(params.size()) - 1; i >= 0; --i) {
    const int64_t n = numel_of(params[i].param.shape);
    if (params[i].tied) {
      close();
      count = 1;
      close();
      continue;
    }
    if (count > 0 && size > 0) {
      const int64_t enough = std::max(size, static_cast<int64_t>(0.9 * world * static_cast<double>(largest)));
      const int64_t least = *std::min_element(fill.begin(), fill.end()),
                    most = *std::max_element(fill.begin(), fill.end());
      if (numel >= enough && pad(least, 64) + n > pad(most, shard_divisor(world))) close();
    }
    auto& f = *std::min_element(fill.begin(), fill.end());
    f = pad(f, 64) + n;
    numel += n;
    largest = std::max(largest, n);
    ++count;
  }
  close();
  return sizes;
}

TEST(LayerWise, BucketsAgreeWithAPlainRewritingOnRandomModels) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> numels;
    for (int64_t i = 1 + below(60); i > 0; --i)
      numels.push_back(trial % 2 == 0 ? 64 * below(8) : 1 + below(3000));
    auto params = vectors(numels);
    for (auto& p : params) p.tied = below(20) == 0;
    const int world = static_cast<int>(1 + below(9));
    const int64_t size = trial % 5 == 0 ? 0 : 1 + below(20000);
    const auto rule = static_cast<Packing>(trial % 3);
    const auto l = LayerWiseLayout::make(params, world, {.packing = rule, .bucket_elements = size});
    std::vector<int> sizes;
    int end = static_cast<int>(params.size());
    int64_t at = 0;
    for (auto& b : l.buckets) {
      sizes.push_back(static_cast<int>(b.layout.params().size()));
      ASSERT_EQ(b.first_param + sizes.back(), end) << "contiguous in backward order";
      end = b.first_param;
      ASSERT_EQ(b.begin.value, at);
      ASSERT_EQ(b.layout.slice() % shard_divisor(world), 0);
      at += b.layout.buffer_elements();
    }
    ASSERT_EQ(end, 0);
    ASSERT_EQ(at, l.elements);
    ASSERT_EQ(sizes, plain_bucket_sizes(params, world, size)) << trial;
  }
}

TEST(LayerWise, ErrorsNameAllOffenders) {
  try {
    (void)LayerWiseLayout::make({{{"w", {-3}}}}, 0, {.bucket_elements = -1, .align = 0});
    FAIL();
  } catch (const InvalidArgument& e) {
    for (const char* part : {"world is 0", "align is 0", "bucket_elements is -1", "'w' of shape [-3]"})
      EXPECT_THAT(e.what(), HasSubstr(part));
  }
  EXPECT_THROW((void)LayerWiseLayout::make({}, 2, {}), InvalidArgument);
}

TEST(LayerWise, SizesThatPass64BitsAreRefused) {
  auto params = vectors(std::vector<int64_t>(200, 16));
  for (auto& p : params) p.tied = true;
  const auto message = [&](int world, int64_t align) -> std::string {
    return message_of<InvalidArgument>([&] { (void)LayerWiseLayout::make(params, world, {.align = align}); });
  };
  // 200 buckets of 2^10 ranks with 2^46 elements each.
  for (const char* part : {"200 parameters (3200 elements) on 1024 ranks", "a multiple of 70368744177664",
                           "more elements than 64 bits count, in 127 buckets and more", "use fewer ranks"})
    EXPECT_THAT(message(1 << 10, int64_t{1} << 46), HasSubstr(part));
  EXPECT_THAT(message(2, int64_t{1} << 62), HasSubstr("a multiple of 4611686018427387904"));
  EXPECT_EQ(message(1 << 8, int64_t{1} << 46), "nothing was thrown");
}

}  // namespace
}  // namespace sherd
