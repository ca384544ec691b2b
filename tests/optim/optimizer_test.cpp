// AdamW and Muon over shards against serial models written here, and the clipping.

#include <cmath>
#include <cstring>
#include <numeric>

#include <sherd/fsdp/weights_change.h>

#include "optim/double_matrices.h"
#include "optim/whole_tensors.h"

#include "support/message_of.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

// Parameters only: gradients are put in by the test.
struct Bag : MadeGradients {
  Parameter add(const std::string& name, Shape shape) { return param(name, std::move(shape), normal(1)); }

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      const Tensor g = p.grad();
      ops::copy_from_host(g.device().compute(), g, gradient(p).data(), g.nbytes());
    }
  }

 public:
  int step = 0, rank = 0;
  /// Different on every rank; the average over ranks 0..n-1 is what an optimizer must see.
  std::vector<float> gradient(const Parameter& p) const {
    std::vector<float> g(static_cast<size_t>(p.numel()));
    for (size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + step + 0.3 * rank));
    return g;
  }
};

class OnMeshes : public ::testing::TestWithParam<std::tuple<int, Strategy, LayoutPolicy>> {};

std::vector<double> average(const Parameter& p, int ranks, int step) {
  Bag bag;
  std::vector<double> sum(static_cast<size_t>(p.numel()), 0);
  for (int r = 0; r < ranks; ++r) {
    bag.rank = r;
    bag.step = step;
    const auto g = bag.gradient(p);
    for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i] / static_cast<double>(ranks);
  }
  return sum;
}

constexpr int kSteps = 3;
constexpr double kLr = 0.1, kDecay = 0.2;

TEST_P(OnMeshes, AdamWIsPyTorchs) {
  const auto [ranks, strategy, layout] = GetParam();
  launch(ranks, [&, ranks = ranks, strategy = strategy, layout = layout](RankContext& r) {
    Bag bag;
    bag.rank = r.world->rank();
    const Parameter matrix = bag.add("matrix.weight", {7, 5}), vector = bag.add("vector.weight", {3});
    const Routing routes = route(bag, {.optimizer = Algorithm::adamw});
    fully_shard(bag, mesh_of(r), {.strategy = strategy, .layout = layout});
    Stream& s = r.device->compute();
    std::vector<std::vector<double>> w, m(2), v(2);
    for (const Parameter& p : {matrix, vector}) {
      const auto start = whole(p, p.shard(), s);
      w.emplace_back(start.begin(), start.end());
    }
    Optimizer optimizer(bag, routes, {.adamw = {}, .muon = {}, .weight_decay = kDecay});
    const Tensor in = Tensor::empty(*r.device, {1}, DType::f32, "test");
    for (int step = 0; step < kSteps; ++step) {
      bag.step = step;
      run_pass(bag, in);
      optimizer.step(kLr);
      for (size_t k = 0; k < 2; ++k) {
        const auto g = average(k == 0 ? matrix : vector, ranks, step);
        m[k].resize(g.size());
        v[k].resize(g.size());
        for (size_t i = 0; i < g.size(); ++i) {
          if (k == 0) w[k][i] *= 1 - kLr * kDecay;  // vectors do not decay
          m[k][i] = 0.9 * m[k][i] + 0.1 * g[i];
          v[k][i] = 0.95 * v[k][i] + 0.05 * g[i] * g[i];
          const double mhat = m[k][i] / (1 - std::pow(0.9, step + 1)),
                       vhat = v[k][i] / (1 - std::pow(0.95, step + 1));
          w[k][i] -= kLr * mhat / (std::sqrt(vhat) + 1e-8);
        }
      }
    }
    for (size_t k = 0; k < 2; ++k) {
      const Parameter& p = k == 0 ? matrix : vector;
      const auto got = whole(p, p.shard(), s);
      // For g near 0 the quotient amplifies its rounding; 1e-4 of a step of size lr.
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], w[k][i], 1e-4 * kLr) << p.name() << " " << i;
    }
    int states = 0;
    for (auto& t : optimizer.state()) {
      ++states;
      EXPECT_EQ(t.local.numel(), t.param.shard_range().size());
    }
    EXPECT_EQ(states, 4);
  });
}

// Rounded by AdamW in its pass or by the group at its next use: they are the master weights'.
TEST_P(OnMeshes, TheModelComputesWithTheLatestWeightsRounded) {
  const auto [ranks, strategy, layout] = GetParam();
  for (const Algorithm algorithm : {Algorithm::adamw, Algorithm::muon}) {
    launch(ranks, [&, strategy = strategy, layout = layout](RankContext& r) {
      Bag bag;
      bag.rank = r.world->rank();
      const Parameter matrix = bag.add("matrix.weight", {7, 5}), vector = bag.add("vector.weight", {3});
      const Routing routes = route(bag, {.optimizer = algorithm});
      fully_shard(bag, mesh_of(r), {.strategy = strategy, .compute_dtype = DType::bf16, .layout = layout});
      Stream& s = r.device->compute();
      ShardRuntime& runtime = runtime_of(bag);
      Unit& unit = *runtime.units().back();
      Optimizer optimizer(bag, routes, {.adamw = {}, .muon = {}, .weight_decay = kDecay});
      const auto expect_rounded = [&](const char* when) {
        for (const Parameter& p : {matrix, vector}) {
          const auto master = whole(p, p.shard(), s);
          unit.unshard();
          unit.wait();
          const auto used = ops::to_floats(s, p.data());
          for (size_t i = 0; i < used.size(); ++i)
            EXPECT_EQ(used[i], float(bf16(master[i]))) << when << ": " << p.name() << " " << i;
          unit.reshard();
        }
      };
      const auto set = [&](double value) {
        WeightsChange change(runtime);
        for (const Parameter& p : {matrix, vector}) ops::fill(s, p.shard(), value);
        change.end();
      };
      const auto step = [&] {
        run_pass(bag, Tensor::empty(*r.device, {1}, DType::f32, "test"));
        optimizer.step(kLr);
        ++bag.step;
      };
      expect_rounded("at first");
      step();
      expect_rounded("after a step");
      step();
      set(3.14159);
      expect_rounded("set after a step");
      EXPECT_EQ(whole(matrix, matrix.shard(), s)[0], 3.14159f);
      step();
      expect_rounded("after a step again");
    });
  }
}

TEST_P(OnMeshes, MuonOrthogonalizesWholeLogicalBlocks) {
  const auto [ranks, strategy, layout] = GetParam();
  launch(ranks, [&, ranks = ranks, strategy = strategy, layout = layout](RankContext& r) {
    Bag bag;
    bag.rank = r.world->rank();
    // Blocks of 4, 2 and 5 rows meet no shard edge; one wide, one tall matrix.
    Parameter fused = bag.add("fused.weight", {11, 6}), tall = bag.add("tall.weight", {9, 4});
    fused.set_row_blocks({4, 2, 5});
    const Routing routes = route(bag);
    fully_shard(bag, mesh_of(r), {.strategy = strategy, .layout = layout});
    Stream& s = r.device->compute();
    std::vector<Doubles> w, momentum = {Doubles(66, 0), Doubles(36, 0)};
    for (const Parameter& p : {fused, tall}) {
      const auto start = whole(p, p.shard(), s);
      w.emplace_back(start.begin(), start.end());
    }
    Optimizer optimizer(bag, routes, {.adamw = {}, .muon = {}, .weight_decay = kDecay});
    const Tensor in = Tensor::empty(*r.device, {1}, DType::f32, "test");
    for (int step = 0; step < kSteps; ++step) {
      bag.step = step;
      run_pass(bag, in);
      optimizer.step(kLr);
      for (size_t k = 0; k < 2; ++k) {
        const auto g = average(k == 0 ? fused : tall, ranks, step);
        Doubles u(g.size());
        for (size_t i = 0; i < g.size(); ++i) {
          momentum[k][i] = 0.95 * momentum[k][i] + 0.05 * g[i];
          u[i] = 0.05 * g[i] + 0.95 * momentum[k][i];
        }
        const size_t cols = k == 0 ? 6 : 4;
        size_t row = 0;
        for (const size_t rows : k == 0 ? std::vector<size_t>{4, 2, 5} : std::vector<size_t>{9}) {
          const Doubles block(u.begin() + static_cast<long>(row * cols),
                              u.begin() + static_cast<long>((row + rows) * cols));
          const Doubles ortho = newton_schulz(block, rows, cols);
          const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
          for (size_t i = 0; i < ortho.size(); ++i)
            w[k][row * cols + i] = w[k][row * cols + i] * (1 - kLr * kDecay) - kLr * scale * ortho[i];
          row += rows;
        }
      }
    }
    for (size_t k = 0; k < 2; ++k) {
      const Parameter& p = k == 0 ? fused : tall;
      const auto got = whole(p, p.shard(), s);
      // Five steps amplify the small singular values by up to 3.4445^5 ~ 485 times fp32's rounding.
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], w[k][i], 485 * 1.2e-7 * kSteps) << p.name() << " " << i;
    }
    ASSERT_EQ(optimizer.state().size(), 2u);
    EXPECT_EQ(optimizer.state()[0].key, "momentum_buffer");
  });
}

TEST_P(OnMeshes, NormCountsEveryElementOnceAndClippingScalesAll) {
  const auto [ranks, strategy, layout] = GetParam();
  launch(ranks, [&, strategy = strategy, layout = layout](RankContext& r) {
    Bag bag;
    bag.rank = 0;  // the same gradient everywhere: averaging keeps it exactly when ranks is a power of two
    const Parameter a = bag.add("a.weight", {7, 3}), b = bag.add("b.weight", {1}),
                    c = bag.add("c.weight", {130});
    (void)route(bag);
    fully_shard(bag, mesh_of(r), {.strategy = strategy, .layout = layout});
    Stream& s = r.device->compute();
    run_pass(bag, Tensor::empty(*r.device, {1}, DType::f32, "test"));
    double square = 0;
    int64_t zeros = 0;
    for (const Parameter& p : {a, b, c})
      for (float g : bag.gradient(p)) {
        square += static_cast<double>(g) * g;
        zeros += g == 0;
      }
    const auto stats = clip_grad_norm(bag, 0.25);
    s.synchronize();
    EXPECT_NEAR(stats->norm, std::sqrt(square), 1e-6 * std::sqrt(square));
    EXPECT_EQ(stats->zeros, zeros);
    EXPECT_EQ(stats->non_finite, 0);
    EXPECT_GT(zeros, 0);
    for (const Parameter& p : {a, b, c}) {
      const auto got = whole(p, p.grad_shard(), s);
      const auto g = bag.gradient(p);
      for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(got[i], g[i] * 0.25 / std::sqrt(square), 1e-6);
    }
    const auto again = clip_grad_norm(bag, 10);  // below the limit: untouched
    s.synchronize();
    EXPECT_NEAR(again->norm, 0.25, 1e-5);
    const auto third = clip_grad_norm(bag, 0);
    s.synchronize();
    EXPECT_EQ(third->norm, again->norm);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, OnMeshes,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::Values(Strategy::no_shard, Strategy::optim,
                                                              Strategy::optim_grads_params),
                                            ::testing::Values(LayoutPolicy::ragged, LayoutPolicy::even_rows,
                                                              LayoutPolicy::whole_param)));

TEST(Clip, NonFiniteGradientsAreReportedAndLeftAlone) {
  launch(2, [](RankContext& r) {
    struct Bad : Bag {
      Parameter p = add("p.weight", {5});
      void put_gradients() override {
        const Tensor g = p.grad();
        const float v[5] = {1, INFINITY, 2, 0, 3};
        ops::copy_from_host(g.device().compute(), g, v, sizeof v);
      }
    } bag;
    (void)route(bag);
    fully_shard(bag, mesh_of(r));
    run_pass(bag, Tensor::empty(*r.device, {1}, DType::f32, "test"));
    const auto stats = clip_grad_norm(bag, 1);
    Stream& s = r.device->compute();
    s.synchronize();
    EXPECT_TRUE(std::isnan(stats->norm));
    EXPECT_EQ(stats->non_finite, 1);
    EXPECT_EQ(stats->zeros, 1);
    EXPECT_EQ(whole(bag.p, bag.p.grad_shard(), s)[2], 2);
    EXPECT_THROW(clip_grad_norm(bag, -1), InvalidArgument);
  });
}

TEST(Routing, TiedNamesAreListedBelowTheTable) {
  struct Pair : ModuleBase {
    Pair() { tie("head", param("tok", {4, 4}, normal(0.1f))); }
  } model;
  const Routing r = route(model);
  EXPECT_EQ(r.routes.size(), 1u);
  EXPECT_THAT(r.format(), HasSubstr("head = tok (tied)\n"));
}

TEST(Routing, HiddenMatricesGoToMuonAndTheTableSaysWhy) {
  ToyModel model(8, 12, 2);
  const Routing r = route(model);
  std::map<std::string, Algorithm> got;
  for (auto& e : r.routes) got[e.name] = e.algorithm;
  EXPECT_EQ(got["embed.weight"], Algorithm::adamw);
  EXPECT_EQ(got["head.weight"], Algorithm::adamw);
  EXPECT_EQ(got["gain.weight"], Algorithm::adamw);
  EXPECT_EQ(got["blocks.1.norm.weight"], Algorithm::adamw);
  EXPECT_EQ(got["blocks.1.up.weight"], Algorithm::muon);
  EXPECT_EQ(model.blocks_[0]->up_.cut(), CutClass::row);
  EXPECT_EQ(model.table_.cut(), CutClass::element);
  EXPECT_THAT(r.format(), HasSubstr("hidden matrix"));
  EXPECT_THAT(r.format(), HasSubstr("Muon 384"));
}

TEST(Routing, StacksGoToMuonWholeAndTheirBiasesNeither) {
  struct Moe : Bag {
    Parameter router = add("router.weight", {4, 6});
    Parameter fc = add("experts.fc.weight", {2, 5, 6}).set_tensor_shard({"expert", 0, 2, 1});
    Parameter bias = add("experts.fc.bias", {2, 5}).set_tensor_shard({"expert", 0, 2, 1});
    Parameter kernel = add("deep.weight", {2, 2, 3, 3});
  } moe;
  const Routing r = route(moe);
  std::map<std::string, Route> got;
  for (auto& e : r.routes) got[e.name] = e;
  EXPECT_EQ(got["experts.fc.weight"].algorithm, Algorithm::muon);
  EXPECT_EQ(moe.fc.cut(), CutClass::row) << "between its matrices";
  EXPECT_TRUE(got["experts.fc.weight"].decays);
  EXPECT_EQ(got["experts.fc.bias"].algorithm, Algorithm::adamw);
  EXPECT_FALSE(got["experts.fc.bias"].decays) << "a bias, although of two dimensions";
  EXPECT_EQ(got["router.weight"].algorithm, Algorithm::adamw);
  EXPECT_TRUE(got["router.weight"].decays);
  EXPECT_EQ(got["deep.weight"].algorithm, Algorithm::adamw) << "no matrices";
  EXPECT_THAT(r.format(), HasSubstr("[4, 5, 6]  muon    stack of hidden matrices"));
  EXPECT_THAT(r.format(), HasSubstr("Muon 120"));
}

TEST(Routing, RulesOverrideAndMistakesAreExplained) {
  ToyModel model(8, 12, 2);
  const Routing r = route(model, {.rules = {{"blocks\\.0", Algorithm::adamw}, {"^head", Algorithm::muon}}});
  for (auto& e : r.routes) {
    if (e.name == "head.weight") {
      EXPECT_EQ(e.algorithm, Algorithm::muon);
    }
    if (e.name == "blocks.0.up.weight") {
      EXPECT_EQ(e.algorithm, Algorithm::adamw);
    }
  }
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)route(model, {.rules = {{"(", Algorithm::adamw}}});
              }),
              HasSubstr("routing pattern '(': not a regular expression"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)route(model, {.rules = {{"norm", Algorithm::muon}}});
              }),
              HasSubstr("blocks.0.norm.weight"));
}

}  // namespace
}  // namespace sherd::test
