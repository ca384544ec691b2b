// NorMuon, an optimizer on top of Muon's plan: against its formula in double, and in bits over ranks,
// strategies, layouts, modes and tensor parallelism.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include <sherd/fsdp/weights_change.h>
#include <sherd/optim/normuon.h>

#include "optim/double_matrices.h"
#include "support/pieces.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNorMuonLr = 0.02, kNorMuonDecay = 0.1;

struct NorMuonMatrix {
  std::string name;
  Shape shape;
  RowBlocks blocks;
};

// Fewer rows than ranks, rows that are cut, blocks, stacks, and single rows and columns.
const std::vector<NorMuonMatrix>& normuon_matrices() {
  static const std::vector<NorMuonMatrix> list = {{"fused", {12, 8}, stacked_blocks({5, 3, 4})},
                                                  {"wide", {3, 20}, {}},
                                                  {"square", {7, 7}, {}},
                                                  {"gate_up", {10, 6}, interleaved_blocks(10, 2)},
                                                  {"stack", {3, 6, 4}, {}},
                                                  {"row", {1, 9}, {}},
                                                  {"column", {9, 1}, {}}};
  return list;
}

float gradient_at(size_t i, int step) {
  const auto at = static_cast<double>(i);
  return static_cast<float>(std::sin(0.37 * static_cast<double>(i * i % 101) + 1.3 * step) +
                            0.1 * std::cos(at));
}

/// Every rank has the same gradient, so that the average over 2^n ranks is exactly that.
struct NorMuonMatrices : MadeGradients {
  explicit NorMuonMatrices(const std::vector<NorMuonMatrix>& list) {
    for (auto& d : list) {
      Parameter p = param(d.name, d.shape, sherd::normal(0.1f));
      if (!d.blocks.empty()) p.set_row_blocks(d.blocks);
    }
  }
  int step = 0;
  float factor = 1;     // of all gradients
  bool spoilt = false;  // one element of the last gradient is NaN

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      const Tensor grad = p.grad();
      std::vector<float> g(static_cast<size_t>(grad.numel()));
      for (size_t i = 0; i < g.size(); ++i) g[i] = factor * gradient_at(i, step);
      if (spoilt && p == own_parameters().back()) g[0] = std::numeric_limits<float>::quiet_NaN();
      ops::copy_from_host(grad.device().compute(), grad, g.data(), grad.nbytes());
    }
  }
};

/// Weights and state, whole, by name.
using Whole = std::map<std::string, std::vector<float>>;

struct NorMuonRun {
  int ranks = 1, replicas = 1, steps = 3;
  FullyShardOptions shard = {};
  NorMuonOptions options = {};
  const std::vector<NorMuonMatrix>* model = &normuon_matrices();
  CutClass cut = CutClass::row;  // element: pieces begin and end within rows
  /// State and weights to begin with, and the number of steps that were taken before.
  const Whole* from = nullptr;
  int first_step = 0;
};

Tensor local_of(const Parameter& p, const std::vector<StateTensor>& state, const std::string& name) {
  for (auto& t : state)
    if (t.param == p && p.name() + " " + t.key == name) return t.local;
  return p.shard();
}

Whole train_normuon(const NorMuonRun& run) {
  Whole whole;
  launch(run.ranks, [&](RankContext& r) {
    NorMuonMatrices model(*run.model);
    const Routing routing = route(
        model, {.optimizer = Algorithm::adamw, .rules = {{.pattern = ".", .algorithm = NorMuon::kName}}});
    for (auto& p : model.own_parameters()) Parameter(p).set_cut(run.cut);
    const int shard = run.ranks / run.replicas;
    const DeviceMesh mesh = run.replicas == 1
                                ? DeviceMesh(r.world, {{"shard", shard}})
                                : DeviceMesh(r.world, {{"replicate", run.replicas}, {"shard", shard}});
    fully_shard(model, mesh, run.shard);
    Optimizer optimizer(model, routing,
                        {.weight_decay = kNorMuonDecay, .further = {NorMuon::factory(run.options)}});
    Stream& s = r.device->compute();
    const std::vector<StateTensor> state = optimizer.state();
    const auto names = [&](const Parameter& p) {
      return std::vector<std::string>{p.name(), p.name() + " momentum_buffer",
                                      p.name() + " second_momentum_buffer"};
    };
    if (run.from) {
      WeightsChange change(runtime_of(model));
      for (auto& p : model.own_parameters())
        for (auto& name : names(p))
          ops::copy_from_host(s, local_of(p, state, name),
                              run.from->at(name).data() + p.shard_range().begin.value,
                              p.shard_range().size() * int64_t{sizeof(float)});
      change.end();
    }
    const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
    for (model.step = run.first_step; model.step < run.first_step + run.steps; ++model.step) {
      run_pass(model, x);
      optimizer.step(kNorMuonLr);
    }
    for (auto& p : model.own_parameters()) {
      for (auto& name : names(p)) {
        const DTensor t = DTensor::from_layout(p.group().mesh(), p.group().sharded_over(),
                                               std::make_shared<ShardLayout>(p.group().layout()),
                                               p.index_in_group(), local_of(p, state, name));
        std::vector<float> values = ops::to_floats(s, t.full_tensor(s));
        if (r.world->rank() == 0) whole[name] = std::move(values);
      }
    }
  });
  return whole;
}

void expect_equal_bits(const Whole& a, const Whole& b) {
  ASSERT_EQ(a.size(), b.size());
  for (auto& [name, x] : a) {
    const std::vector<float>& y = b.at(name);
    ASSERT_EQ(x.size(), y.size()) << name;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0)
        << name << ": " << x[0] << " " << y[0];
  }
}

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

// The formula once more, in double, for one matrix at a time.

struct PlainNorMuon {
  Doubles weight, momentum, moment;  // moment: of each row
};

void plain_step(PlainNorMuon& p, const Doubles& g, size_t m, size_t n, const NorMuonOptions& o) {
  const double mu = double{o.muon.momentum};
  Doubles u(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    p.momentum[i] = mu * p.momentum[i] + (1 - mu) * g[i];
    u[i] = (1 - mu) * g[i] + mu * p.momentum[i];
  }
  Doubles x = newton_schulz(u, m, n);
  for (size_t r = 0; r < m; ++r) {
    double squares = 0;
    for (size_t c = 0; c < n; ++c) squares += x[r * n + c] * x[r * n + c];
    p.moment[r] = o.beta2 * p.moment[r] + (1 - o.beta2) * squares / static_cast<double>(n);
    for (size_t c = 0; c < n; ++c) x[r * n + c] /= std::sqrt(p.moment[r]) + o.eps;
  }
  const double rate = 0.2 * kNorMuonLr * std::sqrt(static_cast<double>(m * n)) / norm_of(x);
  for (size_t i = 0; i < g.size(); ++i)
    p.weight[i] = p.weight[i] * (1 - kNorMuonLr * kNorMuonDecay) - rate * x[i];
}

/// Rows of a parameter that are one matrix, in their order.
std::vector<std::vector<size_t>> matrices_of(const NorMuonMatrix& d) {
  const auto rows = static_cast<size_t>(d.shape[d.shape.size() - 2]);
  const size_t count = d.shape.size() == 3 ? static_cast<size_t>(d.shape[0]) : 1;
  std::vector<std::vector<size_t>> all;
  for (size_t i = 0; i < count; ++i) {
    if (d.blocks.empty()) {
      all.emplace_back();
      for (size_t r = 0; r < rows; ++r) all.back().push_back(i * rows + r);
    }
    for (auto& b : d.blocks) {
      all.emplace_back();
      for (int64_t run = 0; run < std::max<int64_t>(1, b.count); ++run)
        for (int64_t r = 0; r < b.size; ++r)
          all.back().push_back(i * rows + static_cast<size_t>(b.begin + run * b.stride + r));
    }
  }
  return all;
}

class NorMuonRanks : public ::testing::TestWithParam<int> {};

TEST_P(NorMuonRanks, FollowsTheFormula) {
  NorMuonRun run{.ranks = GetParam()};
  NorMuonRun none = run;
  none.steps = 0;
  const Whole before = train_normuon(none), after = train_normuon(run);
  for (auto& d : normuon_matrices()) {
    const auto cols = static_cast<size_t>(d.shape.back());
    const std::vector<float>& start = before.at(d.name);
    Doubles weight(start.size()), moment(start.size());
    for (auto& rows : matrices_of(d)) {
      const size_t m = rows.size();
      PlainNorMuon p{Doubles(m * cols), Doubles(m * cols, 0), Doubles(m, 0)};
      for (size_t i = 0; i < m * cols; ++i) p.weight[i] = double{start[rows[i / cols] * cols + i % cols]};
      for (int step = 0; step < run.steps; ++step) {
        Doubles g(m * cols);
        for (size_t i = 0; i < g.size(); ++i)
          g[i] = double{gradient_at(rows[i / cols] * cols + i % cols, step)};
        plain_step(p, g, m, cols, run.options);
      }
      for (size_t i = 0; i < m * cols; ++i) {
        weight[rows[i / cols] * cols + i % cols] = p.weight[i];
        moment[rows[i / cols] * cols + i % cols] = p.moment[i / cols];
      }
    }
    // Five steps multiply the f32 rounding errors of the normalised matrix (8 * 2^-24 of a norm of one, for
    // sums over up to 20 elements) by up to 3.4445^5 = 485 where singular values are small: 2.3e-4 of O,
    // whose norm is one or more. Dividing by the rows' sizes and by the norm doubles that relative error at
    // most twice; an update has elements of 0.2 * lr, at most sqrt(m n) times that. The moment
    // is a square, of which three steps take 1 - 0.95^3 < 0.15.
    const double error = 4 * 485 * 8 * std::pow(2.0, -24);
    EXPECT_LE(largest_difference(after.at(d.name), weight), run.steps * 0.2 * kNorMuonLr * error * 4)
        << d.name;
    EXPECT_LE(largest_difference(after.at(d.name + " second_momentum_buffer"), moment), 0.15 * error)
        << d.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NorMuonRanks, ::testing::Values(1, 3, 4, 12));

TEST(NorMuon, StrategiesLayoutsAndModesAgreeInBits) {
  const Whole one = train_normuon({});
  for (const int ranks : {1, 3, 4, 8}) {
    const Whole replicated = train_normuon({.ranks = ranks, .shard = {.strategy = Strategy::no_shard}});
    // Three ranks' average of equal gradients rounds.
    if (ranks != 3) expect_equal_bits(replicated, one);
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
        for (const MuonMode mode : {MuonMode::automatic, MuonMode::owner, MuonMode::gather}) {
          SCOPED_TRACE(testing::Message() << ranks << " " << name_of(strategy) << " "
                                          << static_cast<int>(layout) << " " << name_of(mode));
          NorMuonRun run{.ranks = ranks};
          run.shard.strategy = strategy;
          run.shard.layout = layout;
          run.options.muon.mode = mode;
          run.options.muon.transient_bytes = mode == MuonMode::owner ? 1 : 0;  // 1: every matrix alone
          expect_equal_bits(train_normuon(run), replicated);
          run.cut = CutClass::element;
          expect_equal_bits(train_normuon(run), replicated);
        }
      }
    }
  }
}

TEST(NorMuon, TheLayoutsAboveCutRowsAndLeaveRanksWithout) {
  int cut = 0, empty = 0;
  std::mutex mutex;
  launch(8, [&](RankContext& r) {
    NorMuonMatrices model(normuon_matrices());
    for (auto& p : model.own_parameters()) Parameter(p).set_cut(CutClass::element);
    fully_shard(model, DeviceMesh(r.world, {{"shard", 8}}));
    const std::lock_guard lock(mutex);
    for (auto& p : model.own_parameters()) {
      const ParamRange range = p.shard_range();
      empty += range.empty();
      cut += !range.empty() && range.begin.value % p.shape().back() != 0;
    }
  });
  EXPECT_GT(cut, 0);
  EXPECT_GT(empty, 0);
}

TEST(NorMuon, ReplicasThatShareOwnersAddEveryRowOnce) {
  const Whole one = train_normuon({});
  for (const PlanCosts costs : {PlanCosts{1e15, 1}, PlanCosts{1, 1e15}}) {
    for (const int replicas : {2, 4, 8}) {
      for (const Outer outer : {Outer::no_shard, Outer::optim}) {
        NorMuonRun run{.ranks = 8, .replicas = replicas};
        run.shard.outer = outer;
        run.options.muon.costs = costs;
        run.cut = CutClass::element;
        expect_equal_bits(train_normuon(run), one);
      }
    }
  }
}

TEST(NorMuon, SixteenBitPayloadsRoundAlike) {
  NorMuonRun one;
  one.options.muon.payload = DType::bf16;
  const Whole expected = train_normuon(one);
  for (const MuonMode mode : {MuonMode::owner, MuonMode::gather}) {
    NorMuonRun run = one;
    run.ranks = 4;
    run.options.muon.mode = mode;
    expect_equal_bits(train_normuon(run), expected);
  }
}

TEST(NorMuon, GramEntriesAgreeToRounding) {
  static const std::vector<NorMuonMatrix> tall = {{"a", {37, 5}, {}},
                                                  {"fused", {24, 6}, stacked_blocks({7, 9, 8})}};
  const Whole expected = train_normuon({.steps = 1, .model = &tall});
  for (const int ranks : {2, 4}) {
    NorMuonRun run{.ranks = ranks, .steps = 1, .model = &tall};
    run.options.muon.mode = MuonMode::gram;
    const Whole got = train_normuon(run);
    for (auto& d : tall) {
      const std::vector<float>& w = expected.at(d.name);
      // Same as in FollowsTheFormula, for one step.
      EXPECT_LE(largest_difference(got.at(d.name), Doubles(w.begin(), w.end())),
                0.2 * kNorMuonLr * 4 * 4 * 485 * 8 * std::pow(2.0, -24));
    }
  }
}

TEST(NorMuon, ResumesInBitsOnOtherRanks) {
  const Whole all = train_normuon({.ranks = 4, .steps = 4}), half = train_normuon({.ranks = 4, .steps = 2});
  for (const int ranks : {1, 2, 8}) {
    NorMuonRun rest{.ranks = ranks, .steps = 2, .from = &half, .first_step = 2};
    expect_equal_bits(train_normuon(rest), all);
    rest.shard.layout = LayoutPolicy::even_rows;
    expect_equal_bits(train_normuon(rest), all);
  }
}

TEST(NorMuon, UpdatesHaveTheRmsOfMuonsWhateverTheShape) {
  NorMuonRun run{.ranks = 2, .steps = 1};
  NorMuonRun none{.ranks = 2, .steps = 0};
  run.options.muon.scale_factor = 0.5;
  const Whole after = train_normuon(run), before = train_normuon(none);
  for (auto& d : normuon_matrices()) {
    double squares = 0;
    const std::vector<float>&a = after.at(d.name), &b = before.at(d.name);
    for (size_t i = 0; i < a.size(); ++i)
      squares += std::pow(double{a[i]} - double{b[i]} * (1 - kNorMuonLr * kNorMuonDecay), 2);
    // Weights of 0.1 round to 2^-27 of one, which is 2^-27 / (0.1 lr) = 4e-6 of an update.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(a.size())) / (0.5 * 0.2 * kNorMuonLr), 1, 1e-5)
        << d.name;
  }
}

TEST(NorMuon, TensorParallelRowsAndColumnsGiveTheBitsOfOneRank) {
  const auto run = [](const Spread& spread, MuonMode mode) {
    Whole whole;
    std::mutex mutex;
    launch(spread.ranks(), [&](RankContext& r) {
      Pieces model(r, spread);
      std::vector<UpdateItem> items;
      for (auto& [name, p] : model.named_parameters()) {
        if (p.shape().size() < 2) continue;
        Parameter param = p;
        param.set_cut(CutClass::row);
        items.push_back({param, kNorMuonDecay});
      }
      model.wrap({.strategy = Strategy::optim_grads_params});
      NorMuon optimizer(*r.device, items, {.muon = {.mode = mode}});
      Stream& s = r.device->compute();
      for (int step = 0; step < 3; ++step) {
        model.run(*r.device);
        WeightsChange change(runtime_of(model));
        optimizer.step(s, kNorMuonLr);
        change.end();
      }
      for (auto& item : items) {
        const Parameter& p = item.param;
        const std::vector<float> local = ops::to_floats(s, p.dtensor().full_tensor(s));
        const std::lock_guard lock(mutex);
        std::vector<float>& w = whole[p.name()];
        w.resize(static_cast<size_t>(numel_of(p.global_shape())), NAN);
        for (auto& piece : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
          std::copy_n(local.begin() + piece.local.value, piece.count, w.begin() + piece.global.value);
      }
    });
    return whole;
  };
  const Whole one = run({}, MuonMode::automatic);
  for (const Spread& spread :
       {Spread{.tp = 2}, Spread{.shard = 2, .tp = 2, .experts = 2}, Spread{.shard = 4, .tp = 2, .experts = 4},
        Spread{.replicas = 2, .shard = 2, .tp = 2, .experts = 2}, Spread{.replicas = 2, .tp = 4}})
    for (const MuonMode mode : {MuonMode::automatic, MuonMode::owner, MuonMode::gather})
      expect_equal_bits(run(spread, mode), one);
}

TEST(NorMuon, SkippedStepsChangeNothing) {
  launch(3, [](RankContext& r) {
    NorMuonMatrices model(normuon_matrices());
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = NorMuon::kName}}});
    fully_shard(model, DeviceMesh(r.world, {{"shard", 3}}));
    Optimizer optimizer(model, routing, {.further = {NorMuon::factory()}});
    Stream& s = r.device->compute();
    const auto step = [&](bool spoilt) {
      model.spoilt = spoilt;
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      optimizer.step(kNorMuonLr);
      std::vector<std::vector<float>> all;
      for (auto& t : optimizer.state()) all.push_back(ops::to_floats(s, t.local));
      for (auto& p : model.own_parameters()) all.push_back(ops::to_floats(s, p.shard()));
      return all;
    };
    const auto first = step(false);
    EXPECT_EQ(step(true), first);
    EXPECT_EQ(optimizer.skipped(), 1);
    EXPECT_NE(step(false), first);
    EXPECT_NE(dynamic_cast<NorMuon*>(&optimizer.rule(NorMuon::kName)), nullptr);
  });
}

TEST(NorMuon, MatricesOfZerosStayAsTheyAre) {
  launch(2, [](RankContext& r) {
    NorMuonMatrices model(normuon_matrices());
    model.factor = 0;
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = NorMuon::kName}}});
    fully_shard(model, DeviceMesh(r.world, {{"shard", 2}}));
    Optimizer optimizer(model, routing, {.further = {NorMuon::factory()}});
    Stream& s = r.device->compute();
    std::vector<std::vector<float>> before;
    for (auto& p : model.own_parameters()) before.push_back(ops::to_floats(s, p.shard()));
    for (int step = 0; step < 2; ++step) {
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      optimizer.step(kNorMuonLr);
    }
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(ops::to_floats(s, model.own_parameters()[i].shard()), before[i]);
    for (auto& t : optimizer.state())
      for (const float v : ops::to_floats(s, t.local)) EXPECT_EQ(v, 0);
  });
}

TEST(NorMuonMisuse, OptionsThatCannotBeAreAllNamed) {
  NorMuonOptions o;
  o.muon.momentum = 1;
  o.muon.scale = MuonScale::spectral;
  o.beta2 = 1;
  o.eps = 0;
  EXPECT_THAT(
      NorMuon::factory(o).problems,
      testing::ElementsAre(HasSubstr("momentum 1"), HasSubstr("scale spectral must be match_rms_adamw"),
                           HasSubstr("beta2 1"), HasSubstr("eps 0")));
  launch(1, [&](RankContext& r) {
    try {
      NorMuon(*r.device, {}, o);
      ADD_FAILURE();
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("NorMuon: "), HasSubstr("momentum 1"), HasSubstr("beta2 1")));
    }
  });
}

TEST(NorMuonMisuse, DifferentOptionsOfRanksAreReported) {
  launch(2, [](RankContext& r) {
    NorMuonMatrices model(normuon_matrices());
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = NorMuon::kName}}});
    fully_shard(model, DeviceMesh(r.world, {{"shard", 2}}));
    NorMuonOptions o;
    o.beta2 = r.world->rank() == 0 ? 0.9 : 0.95;
    EXPECT_THROW(Optimizer(model, routing, {.further = {NorMuon::factory(o)}}), ShapeMismatch);
  });
}

}  // namespace
}  // namespace sherd::test
