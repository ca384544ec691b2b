#include <sherd/kernels/qk_clip/qk_clip.h>

#include <cmath>
#include <limits>

#include "lab.h"

namespace sherd::test {
namespace {

std::pair<Floats, Floats> factors(Lab& lab, const Floats& maxima, int64_t kv_heads, double tau,
                                  int64_t skip = 0) {
  const auto heads = static_cast<int64_t>(maxima.size());
  const Tensor query = lab.empty({heads}), key = lab.empty({kv_heads}),
               skips = lab.full({1}, static_cast<double>(skip), DType::i64);
  ops::qk_clip_factors(lab.s, query, key, lab.tensor({heads}, maxima), tau, skips);
  return {lab.floats(query), lab.floats(key)};
}

TEST(QkClip, ScalesBothSidesBySquareRoots) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto [query, key] = factors(lab, {50, 400, 100, 1600}, 4, 100);
    EXPECT_EQ(query, (Floats{1, 0.5f, 1, 0.25f}));
    EXPECT_EQ(key, query);
  }
}

TEST(QkClip, QueriesThatShareAKeyTakeWhatTheOthersDoNotNeed) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const auto [query, key] = factors(lab, {50, 400, 1600, 400, 10, 20}, 2, 100);
    EXPECT_EQ(key, (Floats{0.25f, 0.5f}));
    EXPECT_EQ(query, (Floats{4, 1, 0.25f, 0.5f, 2, 2}));
  }
}

TEST(QkClip, LeavesWhatIsNotFiniteAndSkippedStepsAlone) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Floats ones(3, 1);
    EXPECT_EQ(factors(lab, {NAN, kInf, -kInf}, 3, 1).first, ones);
    EXPECT_EQ(factors(lab, {9, 9, 9}, 3, 1, 1).first, ones);
    EXPECT_EQ(factors(lab, {9, 9, 9}, 3, 1, 1).second, ones);
    EXPECT_EQ(factors(lab, {1, 0, -5}, 1, 1).second, Floats{1});
  }
}

TEST(QkClip, TheFactorsOfManyHeadsAreTheReferences) {
  Lab fast, slow("reference");
  for (const int64_t kv : {1, 8, 600}) {
    Floats maxima = normal(600, 5, 200);
    EXPECT_EQ(factors(fast, maxima, kv, 30), factors(slow, maxima, kv, 30));
  }
}

TEST(QkClip, ScalesEachPieceByANumberOfItsOwn) {
  const Floats x = normal(9000, 3), f = {0.3f, 1, 0.5f, 2};
  const auto run = [&](Lab& lab) {
    const Tensor t = lab.tensor({9000}, x), by = lab.tensor({4}, f);
    std::vector<HeadScaleSegment> pieces;
    for (int64_t at = 0, i = 0; at < 8000; at += i * 13 % 170, ++i)
      if (i % 5 != 3) pieces.push_back({t.data<float>() + at, i * 13 % 170, by.data<float>() + i % 4});
    EXPECT_GT(pieces.size(), 48u) << "more than one launch takes";
    ops::scale_heads(lab.s, pieces);
    return lab.floats(t);
  };
  Lab fast, slow("reference");
  const Floats got = run(fast);
  EXPECT_EQ(got, run(slow));
  EXPECT_NE(got, x);
}

TEST(QkClipMisuse, IsRefused) {
  Lab lab;
  const Tensor three = lab.empty({3}), two = lab.empty({2});
  EXPECT_THROW(ops::qk_clip_factors(lab.s, three, two, three, 1), ShapeMismatch);
  EXPECT_THROW(ops::qk_clip_factors(lab.s, three, three, two, 1), ShapeMismatch);
  EXPECT_THROW(ops::qk_clip_factors(lab.s, three, three, three, 0), ShapeMismatch);
  const HeadScaleSegment none{three.data<float>(), 3, nullptr};
  EXPECT_THROW(ops::scale_heads(lab.s, {&none, 1}), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
