// First values: what each kind gives, and that no mesh, strategy, layout or cut changes a bit of it.

#include <cmath>
#include <map>
#include <numeric>

#include "optim/whole_tensors.h"
#include "support/message_of.h"
#include "support/pieces.h"

namespace sherd::test {
namespace {

using Values = std::map<std::string, std::vector<float>>;

// Parameters of every kind, of awkward shapes, some of them cut over `tp` and some over `expert`.
class EveryKind : public ModuleBase {
 public:
  EveryKind(RankContext& r, const Spread& spread)
      : mesh_(spread.mesh(r)), expert_mesh_(spread.expert_mesh(r)), experts_(expert_mesh_) {
    const Cutter tp(mesh_, "tp");
    const auto make = [&](const char* name, Init init) {
      return [this, name, init](const Shape& s) { return param(name, s, init); };
    };
    param("uniform", {13, 5}, uniform(-1, 2));
    param("truncated", {7, 3}, truncated_normal(1, 0, -0.5f, 2));
    param("kaiming.uniform", {5, 7}, kaiming_uniform());
    param("xavier.normal", {5, 7}, xavier_normal());
    param("index", {6, 5}, from_function([](int64_t i) { return static_cast<float>(i); }));
    param("orthogonal.wide", {5, 9}, orthogonal());
    param("orthogonal.tall", {9, 5}, orthogonal(2));
    param("orthogonal.conv", {4, 2, 3, 3}, orthogonal());
    param("empty", {0, 3}, kaiming_normal());
    tp.cut(make("cut.rows", kaiming_normal()), {8, 3}, 0);
    tp.cut(make("cut.columns", kaiming_normal()), {3, 8}, 1);
    tp.cut(make("cut.out", kaiming_uniform(Fan::out)), {8, 3}, 0);
    tp.cut(make("cut.index", from_function([](int64_t i) { return static_cast<float>(i); })), {4, 8}, 1);
    tp.cut(make("cut.truncated", truncated_normal(0.02f)), {24, 5}, 0, {12, 4, 8});
    tp.cut(make("cut.orthogonal", orthogonal()), {24, 5}, 0, {12, 4, 8});
    tp.cut(make("cut.blocks", orthogonal(1, true)), {24, 5}, 0, {12, 4, 8});
    tp.cut(make("cut.columns.blocks", orthogonal(1, true)), {6, 8}, 1).set_row_blocks({2, 4});
    const auto heads = tp.cut(make("cut.heads", orthogonal(1, true)), {8, 5}, 0);
    Parameter(heads).set_row_blocks(head_blocks(heads.shape()[0] / 2, 2));
    child("experts", experts_);
  }
  void wrap(const FullyShardOptions& options, const RootOptions& root) {
    FullyShardOptions own = options;
    own.shard_dim = "expert_shard";
    own.gradient_ranks = 1;
    fully_shard(experts_, expert_mesh_, own);
    fully_shard(*this, mesh_, options, root);
  }

 private:
  struct Experts : ModuleBase {
    explicit Experts(const DeviceMesh& mesh) {
      const Cutter cutter(mesh, "expert");
      const auto cut = [&](const char* name, Init init) {
        return cutter.cut([&](const Shape& s) { return param(name, s, init); }, {4, 6, 2}, 0);
      };
      cut("kaiming", kaiming_normal(Fan::in, 1));
      cut("xavier", xavier_uniform());
      cut("orthogonal", orthogonal());
      cut("blocks", orthogonal(1, true)).set_row_blocks({2, 4});
      cut("interleaved", orthogonal(1, true)).set_row_blocks(interleaved_blocks(6, 2));
    }
  };

  DeviceMesh mesh_, expert_mesh_;
  Experts experts_;
};

Values values_of(const Spread& spread, const FullyShardOptions& options, const RootOptions& root = {}) {
  OwnedValues got;
  launch(spread.ranks(), [&](RankContext& r) {
    EveryKind model(r, spread);
    model.wrap(options, root);
    for (auto& [name, p] : model.named_parameters())
      got.add(p, name, test::whole(p, p.shard(), r.device->compute()));
  });
  return got.values();
}

TEST(Init, TheSameBitsOnEveryMeshStrategyLayoutAndCut) {
  const Values want = values_of({}, {}, {.seed = 5});
  for (const Strategy strategy : kEveryStrategy)
    for (const int ranks : {1, 3, 4})
      EXPECT_EQ(values_of({.shard = ranks}, {.strategy = strategy}, {.seed = 5}), want) << ranks << " ranks";
  for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
    for (const Spread spread :
         {Spread{.tp = 2, .experts = 2}, Spread{.shard = 2, .tp = 2, .experts = 4},
          Spread{.shard = 3, .tp = 4}, Spread{.replicas = 2, .shard = 1, .tp = 4, .experts = 4}})
      EXPECT_EQ(values_of(spread, {.layout = layout}, {.seed = 5}), want) << spread.ranks() << " ranks";
  EXPECT_NE(values_of({}, {}, {.seed = 6}), want);
}

// The largest difference of the product with its own transpose, of the short side, to the identity times
// `square`.
double far_from_orthogonal(const float* m, const std::vector<int64_t>& rows, int64_t columns,
                           double square = 1) {
  const auto n = static_cast<int64_t>(rows.size());
  const auto at = [&](int64_t i, int64_t k) {  // element k of short vector i
    return n <= columns ? double{m[rows[static_cast<size_t>(i)] * columns + k]}
                        : double{m[rows[static_cast<size_t>(k)] * columns + i]};
  };
  double worst = 0;
  for (int64_t i = 0; i < std::min(n, columns); ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < std::max(n, columns); ++k) sum += at(i, k) * at(j, k);
      worst = std::max(worst, std::abs(sum - (i == j ? square : 0)));
    }
  return worst;
}
std::vector<int64_t> rows_from(int64_t begin, int64_t count, int64_t stride = 1) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = begin + i * stride;
  return rows;
}

TEST(Init, OrthogonalMatricesAreSoByThemselvesAndByBlocks) {
  const Values v = values_of({}, {}, {.seed = 5});
  // Unit vectors rounded to f32: each product of two is off by at most about 2^-24 for each of the two.
  const double tolerance = 4 * 0x1p-24;
  const auto off = [&](const char* name, const std::vector<int64_t>& rows, int64_t columns, int64_t first = 0,
                       double square = 1) {
    return far_from_orthogonal(v.at(name).data() + first, rows, columns, square);
  };
  EXPECT_LE(off("orthogonal.wide", rows_from(0, 5), 9), tolerance);
  EXPECT_LE(off("orthogonal.tall", rows_from(0, 9), 5, 0, 4), 4 * tolerance);
  EXPECT_LE(off("orthogonal.conv", rows_from(0, 4), 18), tolerance);
  EXPECT_LE(off("cut.orthogonal", rows_from(0, 24), 5), tolerance);
  for (const auto& rows : {rows_from(0, 12), rows_from(12, 4), rows_from(16, 8)})
    EXPECT_LE(off("cut.blocks", rows, 5), tolerance);
  for (const auto& rows : {rows_from(0, 2), rows_from(2, 4)})
    EXPECT_LE(off("cut.columns.blocks", rows, 8), tolerance);
  for (int64_t head = 0; head < 4; ++head) EXPECT_LE(off("cut.heads", rows_from(2 * head, 2), 5), tolerance);
  for (int64_t e = 0; e < 4; ++e) {
    EXPECT_LE(off("experts.orthogonal", rows_from(0, 6), 2, 12 * e), tolerance);
    for (const auto& rows : {rows_from(0, 2), rows_from(2, 4)})
      EXPECT_LE(off("experts.blocks", rows, 2, 12 * e), tolerance);
    for (const auto& rows : {rows_from(0, 3, 2), rows_from(1, 3, 2)})
      EXPECT_LE(off("experts.interleaved", rows, 2, 12 * e), tolerance);
  }
  EXPECT_GT(off("cut.blocks", rows_from(0, 24), 5), 0.1);  // not as a whole
}

TEST(Init, AFunctionGetsTheIndexInTheWholeParameter) {
  const Values v = values_of({.shard = 3, .tp = 2}, {});
  for (const char* name : {"index", "cut.index"})
    for (size_t i = 0; i < v.at(name).size(); ++i) EXPECT_EQ(v.at(name)[i], static_cast<float>(i)) << name;
}

TEST(Init, FansAreThoseOfTheWholeParameter) {
  EXPECT_EQ(fan_of({6, 5}, Fan::in), 5);
  EXPECT_EQ(fan_of({6, 5}, Fan::out), 6);
  EXPECT_EQ(fan_of({6, 5}, Fan::average), 5.5);
  EXPECT_EQ(fan_of({100, 6, 5}, Fan::in), 5) << "each matrix of a stack";
  EXPECT_EQ(fan_of({100, 6, 5}, Fan::out), 6);
  EXPECT_EQ(fan_of({8, 4, 3, 3}, Fan::in), 36) << "a convolution";
  EXPECT_EQ(fan_of({8, 4, 3, 3}, Fan::out), 72);

  const Values v = values_of({}, {});
  const auto largest = [&](const char* name) {
    float most = 0;
    for (const float x : v.at(name)) most = std::max(most, std::abs(x));
    return most;
  };
  // Bounds of PyTorch's uniform ones: gain * sqrt(3 / fan). 35 and more values come near them.
  const auto below = [](double bound) {
    return ::testing::AllOf(::testing::Le(bound * 1.000001), ::testing::Ge(0.8 * bound));
  };
  EXPECT_THAT(largest("kaiming.uniform"), below(std::sqrt(2.0) * std::sqrt(3.0 / 7)));
  EXPECT_THAT(largest("cut.out"), below(std::sqrt(2.0) * std::sqrt(3.0 / 8)));
  EXPECT_THAT(largest("experts.xavier"), below(std::sqrt(3.0 / 4)));
}

TEST(Init, NormalKindsHaveTheStddevOfTheirFan) {
  launch(1, [](RankContext& r) {
    struct Wide : ModuleBase {
      Parameter in = param("in", {200, 300}, kaiming_normal(Fan::in, 1)),
                average = param("average", {200, 300}, xavier_normal());
    } model;
    fully_shard(model, mesh_of(r));
    const auto variance = [&](const Parameter& p) {
      double square = 0;
      for (const float x : ops::to_floats(r.device->compute(), p.shard())) square += double{x} * x;
      return square / double(p.numel());
    };
    const double error = 4 * std::sqrt(2.0 / 60000);  // four standard errors of a variance, relative
    EXPECT_NEAR(variance(model.in) * 300, 1, error);
    EXPECT_NEAR(variance(model.average) * 250, 1, error);
  });
}

TEST(Init, WhatCannotBeIsRefusedWithTheName) {
  const auto refused = [](const Shape& shape, const Init& init) {
    return message_of<InvalidArgument>([&] { Parameter("w", shape, init); });
  };
  EXPECT_THAT(refused({4}, kaiming_normal()),
              ::testing::AllOf(HasSubstr("'w'"), HasSubstr("[4]"), HasSubstr("matrix")));
  EXPECT_THAT(refused({4}, orthogonal()), HasSubstr("matrix"));
  EXPECT_THAT(refused({4, 4}, uniform(2, 1)), HasSubstr("between 2 and 1"));
  EXPECT_THAT(refused({4, 4}, uniform(0, NAN)), HasSubstr("between 0 and nan"));
  EXPECT_THAT(refused({4, 4}, truncated_normal(0)), HasSubstr("stddev 0"));
  EXPECT_THAT(refused({4, 4}, truncated_normal(1, 0, 4, 5)), HasSubstr("[4, 5] with probability"));
  EXPECT_THAT(refused({4, 4}, from_function(nullptr)), HasSubstr("no function"));
  EXPECT_THAT(refused({4, 4}, kaiming_normal(Fan::in, INFINITY)), HasSubstr("gain"));
  EXPECT_EQ(refused({4, 4}, xavier_uniform()), "nothing was thrown");
}

}  // namespace
}  // namespace sherd::test
