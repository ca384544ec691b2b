// KL-SOAP and state of whole matrices: names, reports and refusals.

#include <memory>

#include "optim/matrix_rules.h"

#include "support/message_of.h"

namespace sherd::test {
namespace {

TEST(Soap, HasStateOfWholeMatricesAloneByBlocksAndShapesOfHeads) {
  const OwnedValues::Map state = trained(Soap::factory(), {.steps = 1});
  EXPECT_EQ(state.at("stack soap_left").size(), 5u * 4 * 4);
  EXPECT_EQ(state.at("fused soap_right_basis[1]").size(), 64u);
  EXPECT_EQ(state.at("heads soap_left[2x4]").size(), 2u * 2 * 2);
  EXPECT_EQ(state.at("heads soap_left[3x4]").size(), 2u * 3 * 3);
  const OwnedValues::Map pieces = trained_pieces(Soap::factory(), {}, /*heads=*/true, 1);
  EXPECT_EQ(pieces.at("qkv soap_left[2x5]").size(), 4u * 2 * 2);
  EXPECT_EQ(pieces.at("qkv soap_left[4x5]").size(), 4u * 4 * 4);
  EXPECT_EQ(pieces.at("rows soap_exp_avg[2x3]").size(), 4u * 2 * 3);
  EXPECT_EQ(pieces.at("columns soap_right[3x8]").size(), 8u * 8) << "heads whose columns are cut";
  for (const auto* all : {&state, &pieces})
    for (const auto& [name, values] : *all)
      EXPECT_TRUE(name.find(' ') == name.npos || name.find(" soap_") != name.npos || name.ends_with(" low"))
          << name;
}

// Each tensor-parallel rank computes heads of its own, so each reports them.
TEST(Soap, NonFiniteHeadsAreReportedByTheRankThatHasThem) {
  struct Heads : MadeGradients {
    explicit Heads(const DeviceMesh& mesh) : index(mesh.coordinate("tp")) {
      param("heads", {4, 3}, normal(1)).set_cut(CutClass::row);
      own_parameters()[0].set_row_blocks(head_blocks(2, 2)).set_tensor_shard({"tp", 0, 2, index});
    }
    void put_gradients() override {
      std::vector<float> g(12, 1);
      if (index == 1) g[7] = NAN;
      const Tensor to = own_parameters()[0].grad();
      ops::copy_from_host(to.device().compute(), to, g.data(), to.nbytes());
    }
    int index;
  };
  std::vector<std::vector<std::pair<std::string, MatrixStatus>>> found(2);
  launch(2, [&](RankContext& r) {
    const DeviceMesh mesh(r.world, {{"shard", 1}, {"tp", 2}});
    Heads model(mesh);
    fully_shard(model, mesh);
    Soap rule(*r.device, matrix_items(model), {});
    run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
    update_by(rule, model);
    found[static_cast<size_t>(r.world->rank())] = rule.report();
  });
  EXPECT_TRUE(found[0].empty());
  ASSERT_EQ(found[1].size(), 1u);
  EXPECT_EQ(found[1][0].first, "heads head1 of tp 1");
  EXPECT_EQ(found[1][0].second, MatrixStatus::not_finite);
}

/// A rule whose state is what the test says.
struct StatefulRule : MatrixRule {
  explicit StatefulRule(std::vector<MatrixStateSpec> specs) : specs_(std::move(specs)) {}
  std::string name() const override { return "Stateful"; }
  std::string settings() const override { return "none"; }
  double matrix_flops(int64_t, int64_t) const override { return 1; }
  std::vector<MatrixStateSpec> state(int64_t, int64_t) const override { return specs_; }
  std::vector<MatrixStateSpec> specs_;
};

std::string stateful_refused(const MomentumOptions& options, const std::vector<MatrixStateSpec>& first,
                             const std::vector<MatrixStateSpec>& second) {
  return message_of<std::exception>([&] {
    launch(2, [&](RankContext& r) {
      MatrixModel model;
      fully_shard(model, mesh_of(r));
      const auto& specs = r.world->rank() == 0 ? first : second;
      WholeMatrices rule(*r.device, matrix_items(model), std::make_shared<StatefulRule>(specs), options);
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      update_by(rule, model);
    });
  });
}

TEST(MatrixState, WhatDoesNotFitIsRefused) {
  const std::vector<MatrixStateSpec> good = {{"sum", {4}}};
  EXPECT_THAT(stateful_refused({.mode = MatrixMode::gram}, good, good), HasSubstr("Stateful mode gram"));
  EXPECT_THAT(stateful_refused({.tensor = MatrixTensorMode::distributed}, good, good),
              HasSubstr("a rule with state needs whole matrices"));
  EXPECT_THAT(stateful_refused({.state_weight = 2}, good, good),
              HasSubstr("state_weight 2 must lie in [0, 1]"));
  EXPECT_THAT(stateful_refused({}, {{"a.b", {0}}}, {{"a.b", {0}}}),
              AllOf(HasSubstr("key 'a.b' must be a word"), HasSubstr("has shape [0]")));
  EXPECT_THAT(stateful_refused({}, good, {{"sum", {5}}}),
              AllOf(HasSubstr("the ranks made different Stateful plans"),
                    HasSubstr("the cost, scale or state of matrix fused")));
  EXPECT_THAT(stateful_refused({}, good, good), HasSubstr("Stateful has state() and does not override"));
}

TEST(Soap, InvalidOptionsAreListedTogether) {
  SoapOptions o{.constants = {.beta1 = 1, .eps = 0}, .max_dim = -1};
  const std::vector<std::string> wrong = problems_of(o);
  ASSERT_EQ(wrong.size(), 3u);
  EXPECT_THAT(wrong[0], HasSubstr("beta1 1 must lie in [0, 1)"));
  EXPECT_THAT(wrong[2], HasSubstr("max_dim -1 must lie in [0, 32000]"));
}

}  // namespace
}  // namespace sherd::test
