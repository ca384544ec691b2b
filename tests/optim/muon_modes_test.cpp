// Muon over shards: every mode against one rank, in bits where that is promised; messages counted and
// bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include <sherd/fsdp/weights_change.h>

#include "support/toy_model.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

using WeightList = std::vector<std::vector<float>>;

struct Described {
  std::string name;
  Shape shape;
  RowBlocks blocks;
};

/// Parameters only; every rank has the same gradient, so that the average over 2^n ranks is exactly that.
struct Matrices : MadeGradients {
  explicit Matrices(const std::vector<Described>& list) {
    for (auto& d : list) {
      Parameter p = param(d.name, d.shape, normal(0.1f));
      p.set_cut(CutClass::row);
      if (!d.blocks.empty()) p.set_row_blocks(d.blocks);
    }
  }
  int step = 0, accumulate = 1;  // each microbatch adds its share: exact for powers of two
  std::function<void(const Parameter&, std::vector<float>&)> poison;

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i)
        g[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i * i % 101) + 1.3 * step) +
                                  0.1 * std::cos(static_cast<double>(i)));
      if (poison) poison(p, g);
      for (float& v : g) v /= static_cast<float>(accumulate);
      const Tensor grad = p.grad();
      Stream& stream = grad.device().compute();
      const Tensor mine = Tensor::empty(grad.device(), grad.shape(), DType::f32, "test");
      ops::copy_from_host(stream, mine, g.data(), grad.nbytes());
      ops::scaled_add(stream, grad, 1, mine);
    }
  }
};

const std::vector<Described>& awkward() {
  static const std::vector<Described> list = {
      {"fused", {12, 8}, stacked_blocks({5, 3, 4})},
      {"wide", {3, 20}, {}},
      {"square", {7, 7}, {}},
      {"gate_up", {10, 6}, interleaved_blocks(10, 2)},
      {"attention", {16, 6}, grouped_query_blocks(2, 2, 2)},
      {"stack", {3, 6, 4}, {}},
      {"fused_stack", {2, 7, 3}, stacked_blocks({4, 3})},
      {"row", {1, 9}, {}},
      {"column", {9, 1}, {}},
      {"square2", {7, 7}, {}},
  };
  return list;
}

struct MuonRun {
  int ranks = 1, replicas = 1, steps = 20, accumulate = 1;
  FullyShardOptions shard;
  MuonOptions muon;
  const std::vector<Described>* model = &awkward();
  double weight_decay = 0.1;
  std::function<void(const Parameter&, std::vector<float>&)> poison;
  /// Every rank, after the last step.
  std::function<void(RankContext&, Muon&)> look;
};

WeightList train(const MuonRun& run) {
  WeightList weights;
  launch(run.ranks, [&](RankContext& r) {
    Matrices model(*run.model);
    model.poison = run.poison;
    model.accumulate = run.accumulate;
    const int shard = run.ranks / run.replicas;
    const DeviceMesh mesh = run.replicas == 1
                                ? DeviceMesh(r.world, {{"shard", shard}})
                                : DeviceMesh(r.world, {{"replicate", run.replicas}, {"shard", shard}});
    fully_shard(model, mesh, run.shard);
    std::vector<Muon::Item> items;
    for (auto& p : model.own_parameters()) items.push_back({p, run.weight_decay});
    Muon muon(*r.device, items, run.muon);
    ShardRuntime& runtime = runtime_of(model);
    Stream& s = r.device->compute();
    const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
    for (model.step = 0; model.step < run.steps; ++model.step) {
      for (int micro = 0; micro < run.accumulate; ++micro) {
        runtime.set_last_microbatch(micro + 1 == run.accumulate);
        run_pass(model, x);
      }
      WeightsChange change(runtime);
      muon.step(s, 0.02);
      change.end();
    }
    s.synchronize();
    if (run.look) run.look(r, muon);
    WeightList mine;
    for (auto& p : model.own_parameters()) mine.push_back(ops::to_floats(s, p.dtensor().full_tensor(s)));
    if (r.world->rank() == 0) weights = std::move(mine);
  });
  return weights;
}

void expect_equal_bits(const WeightList& a, const WeightList& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t p = 0; p < a.size(); ++p) {
    ASSERT_EQ(a[p].size(), b[p].size());
    EXPECT_EQ(std::memcmp(a[p].data(), b[p].data(), a[p].size() * sizeof(float)), 0)
        << awkward()[p].name << ": " << a[p][0] << " " << b[p][0];
  }
}

const WeightList& one_rank() {
  static const WeightList w = train({});
  return w;
}

double largest_relative_difference(const WeightList& a, const WeightList& b) {
  double worst = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a[p].size(); ++i) {
      difference += std::pow(static_cast<double>(a[p][i]) - static_cast<double>(b[p][i]), 2);
      norm += std::pow(static_cast<double>(b[p][i]), 2);
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

struct ModeCase {
  int ranks, replicas;
  Strategy strategy;
  Outer outer;
  LayoutPolicy layout;
};
void PrintTo(const ModeCase& c, std::ostream* os) {
  *os << c.ranks << " ranks, " << c.replicas << " replicas, " << name_of(c.strategy) << ", outer "
      << name_of(c.outer) << ", layout " << static_cast<int>(c.layout);
}

class BitExact : public ::testing::TestWithParam<ModeCase> {};

TEST_P(BitExact, ModesEqualOneRank) {
  const ModeCase c = GetParam();
  std::vector<MuonMode> modes = {MuonMode::automatic, MuonMode::owner, MuonMode::gather};
  if (c.layout == LayoutPolicy::whole_param) modes.push_back(MuonMode::local);
  for (const MuonMode mode : modes) {
    for (const int64_t transient : {int64_t{1} << 26, int64_t{4096}}) {
      SCOPED_TRACE(testing::Message() << name_of(mode) << " " << transient);
      MuonRun run{.ranks = c.ranks, .replicas = c.replicas};
      run.shard.strategy = c.strategy;
      run.shard.outer = c.outer;
      run.shard.layout = c.layout;
      run.muon.mode = mode;
      run.muon.transient_bytes = transient;
      // Microbatches with halves of the gradient add up to the same one.
      run.accumulate = mode == MuonMode::automatic && transient > 4096 ? 2 : 1;
      expect_equal_bits(train(run), one_rank());
    }
  }
}

std::vector<ModeCase> mode_cases() {
  std::vector<ModeCase> all;
  for (const Strategy s :
       {Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
    for (const LayoutPolicy l : {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
      all.push_back({2, 1, s, Outer::no_shard, l});
      all.push_back({8, 1, s, Outer::no_shard, l});
      all.push_back({4, 2, s, Outer::no_shard, l});
      all.push_back({4, 2, s, Outer::optim, l});
    }
  }
  all.push_back({16, 1, Strategy::optim_grads_params, Outer::no_shard, LayoutPolicy::even_rows});
  all.push_back({16, 4, Strategy::optim_grads, Outer::no_shard, LayoutPolicy::ragged});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Muon, BitExact, ::testing::ValuesIn(mode_cases()));

TEST(MuonModes, LocalEqualsOneRankWhereMatricesAreWhole) {
  // Two units' worth of equal matrices on two ranks: no boundary cuts any.
  static const std::vector<Described> pair = {{"a", {8, 16}, {}}, {"b", {8, 16}, {}}};
  MuonRun run{.ranks = 2, .model = &pair};
  run.muon.mode = MuonMode::local;
  CommCounts counts;
  run.look = [&](RankContext& r, Muon&) {
    if (r.world->rank() == 0) counts = r.world->counts();
  };
  const WeightList two = train(run);
  EXPECT_EQ(counts.count("all_to_all_v"), 0u);
  EXPECT_EQ(counts.count("all_gather_v"), 0u);
  expect_equal_bits(two, train({.model = &pair}));
}

TEST(MuonModes, SpreadingOverReplicasChangesNoBit) {
  for (const bool slow_network : {false, true}) {
    MuonRun run{.ranks = 8, .replicas = 4};
    run.muon.costs = slow_network ? PlanCosts{1e15, 1} : PlanCosts{1, 1e15};
    int copies = 0;
    run.look = [&](RankContext& r, Muon& m) {
      if (r.world->rank() == 0) copies = m.plans()[0].copies;
    };
    expect_equal_bits(train(run), one_rank());
    EXPECT_EQ(copies, slow_network ? 1 : 4);
  }
}

TEST(MuonModes, GradientAccumulationFeedsMuonOncePerStep) {
  // The plan runs where the optimizer runs; modes agree under every number of microbatches (toy model).
  const auto toy = [](MuonMode mode) {
    ToyRun run;
    run.ranks = 4;
    run.accumulate = 3;
    run.rows = 48;
    run.optimizer = Algorithm::muon;
    run.muon.mode = mode;
    return run_toy(run);
  };
  const ToyResult a = toy(MuonMode::owner), b = toy(MuonMode::gather);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.losses, b.losses);
}

TEST(MuonModes, SixteenBitPayloadsRoundAlikeInEveryMode) {
  for (const DType payload : {DType::bf16, DType::f16}) {
    MuonRun one;
    one.muon.payload = payload;
    const WeightList expected = train(one);
    for (const MuonMode mode : {MuonMode::automatic, MuonMode::owner, MuonMode::gather}) {
      MuonRun run{.ranks = 4};
      run.muon.mode = mode;
      run.muon.payload = payload;
      expect_equal_bits(train(run), expected);
    }
    EXPECT_GT(largest_relative_difference(expected, one_rank()), 0);
  }
}

TEST(MuonModes, GramAgreesToRounding) {
  static const std::vector<Described> tall = {{"a", {37, 5}, {}},
                                              {"fused", {24, 6}, stacked_blocks({7, 9, 8})},
                                              {"square", {8, 8}, {}},
                                              {"column", {9, 1}, {}},
                                              {"single", {1, 1}, {}}};
  for (const IterationForm form : {IterationForm::standard, IterationForm::gram}) {
    for (const int ranks : {2, 4, 8}) {
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
        MuonRun one{.steps = 1, .model = &tall};
        one.muon.orthogonalize.form = form;
        MuonRun run{.ranks = ranks, .steps = 1, .model = &tall};
        run.shard.layout = layout;
        run.muon.mode = MuonMode::gram;
        run.muon.orthogonalize.form = form;
        // Gram matrices of at most 8 x 8 whose sums round in another order: a few ulp through five steps,
        // each of which multiplies errors by at most a = 3.4; 3.4^5 * 8 * 6e-8 is 2e-4 of a singular value
        // near zero, and far less of the norm.
        EXPECT_LE(largest_relative_difference(train(run), train(one)), 1e-5) << ranks;
        // Restarts and small messages make no difference beyond that.
        run.muon.transient_bytes = 1;
        if (form == IterationForm::gram) run.muon.orthogonalize.restarts = {2};
        EXPECT_LE(largest_relative_difference(train(run), train(one)), 1e-5) << ranks;
      }
    }
  }
}

TEST(MuonModes, ScaleAndDecayByName) {
  MuonRun run{.steps = 1};
  run.muon.mode = MuonMode::automatic;
  for (const MuonDecay d : {MuonDecay::decoupled, MuonDecay::independent, MuonDecay::l2, MuonDecay::palm}) {
    run.muon.decay = d;
    MuonRun four = run;
    four.ranks = 4;
    expect_equal_bits(train(four), train(run));
  }
  MuonOptions o;
  EXPECT_DOUBLE_EQ(update_scale(o, 4, 16), 0.8);
  o.scale = MuonScale::spectral;
  EXPECT_DOUBLE_EQ(update_scale(o, 4, 16), 4);
  o.scale = MuonScale::unit_rms_norm;
  EXPECT_DOUBLE_EQ(update_scale(o, 4, 16), 0.5);
  o.scale = MuonScale::shape_scaling;
  EXPECT_DOUBLE_EQ(update_scale(o, 4, 16), 1);
  EXPECT_DOUBLE_EQ(update_scale(o, 16, 4), 2);
  o.scale = MuonScale::original;
  o.scale_factor = 3;
  EXPECT_DOUBLE_EQ(update_scale(o, 16, 4), 6);
  EXPECT_DOUBLE_EQ(decay_factor(MuonDecay::decoupled, 0.1, 0.2), 0.98);
  EXPECT_DOUBLE_EQ(decay_factor(MuonDecay::independent, 0.1, 0.2), 0.8);
  EXPECT_DOUBLE_EQ(decay_factor(MuonDecay::palm, 0.1, 0.2), 0.998);
  EXPECT_DOUBLE_EQ(decay_factor(MuonDecay::l2, 0.1, 0.2), 1);
  EXPECT_EQ(parse_muon_mode("auto"), MuonMode::automatic);
  EXPECT_EQ(parse_muon_scale("match_rms_adamw"), MuonScale::match_rms_adamw);
  EXPECT_THROW(parse_muon_decay("none"), InvalidArgument);
}

TEST(MuonModes, ZeroAndNonFiniteMatricesAreReportedOnceAndUpdateNothing) {
  for (const int ranks : {1, 4}) {
    MuonRun run{.ranks = ranks, .steps = 1, .weight_decay = 0};
    run.poison = [](const Parameter& p, std::vector<float>& g) {
      if (p.name() == "square") std::fill(g.begin(), g.end(), 0.0f);
      if (p.name() == "wide") g[5] = INFINITY;
      if (p.name() == "fused") g[1] = NAN;  // first block only
    };
    std::mutex mutex;
    std::map<std::string, std::vector<MatrixStatus>> found;
    run.look = [&](RankContext&, Muon& m) {
      const auto report = m.report();
      const std::lock_guard lock(mutex);
      for (auto& [name, status] : report) found[name].push_back(status);
    };
    const WeightList after = train(run);
    EXPECT_EQ(found.size(), 3u);
    EXPECT_THAT(found["square"], ::testing::ElementsAre(MatrixStatus::zero));
    EXPECT_THAT(found["wide"], ::testing::ElementsAre(MatrixStatus::not_finite));
    EXPECT_THAT(found["fused 0"], ::testing::ElementsAre(MatrixStatus::not_finite));
    MuonRun nothing = run;
    nothing.ranks = 1;
    nothing.steps = 0;
    nothing.look = nullptr;
    const WeightList before = train(nothing);
    EXPECT_EQ(after[1], before[1]);
    EXPECT_EQ(after[2], before[2]);
    for (int i = 0; i < 5 * 8; ++i)
      EXPECT_EQ(after[0][static_cast<size_t>(i)], before[0][static_cast<size_t>(i)]);
    EXPECT_NE(after[0], before[0]);
    for (auto& w : after)
      for (float v : w) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(MuonModes, MessagesAreCounted) {
  // One matrix in four equal pieces: (P - 1) / P of it moves to its owner and back.
  static const std::vector<Described> single = {{"m", {16, 16}, {}}};
  for (const int steps : {1, 3}) {
    MuonRun run{.ranks = 4, .steps = steps, .model = &single};
    run.muon.mode = MuonMode::owner;
    std::mutex mutex;
    int64_t bytes = 0, calls = 0, fingerprints = 0;
    run.look = [&](RankContext& r, Muon&) {
      const std::lock_guard lock(mutex);
      const CommCounts c = r.world->counts();
      bytes += c.at("all_to_all_v").bytes;
      calls += c.at("all_to_all_v").calls;
      fingerprints +=
          c.contains("all_reduce") ? c.at("all_reduce").calls : 0;  // its ranks compare by all_gather
    };
    train(run);
    EXPECT_EQ(bytes, steps * 2 * 16 * 16 * 4 * 3 / 4);
    EXPECT_EQ(calls, steps * 2 * 4) << "two collectives per chunk on each of four ranks";
    EXPECT_EQ(fingerprints % 4, 0);
    static int64_t first = fingerprints;
    EXPECT_EQ(fingerprints, first) << "nothing but matrices is exchanged after the start";
  }
}

TEST(MuonModes, EveryChunkIsTwoCollectives) {
  static const std::vector<Described> five = [] {
    std::vector<Described> list;
    for (int i = 0; i < 5; ++i) list.push_back({"m" + std::to_string(i), {16, 16 + 16 * i}, {}});
    return list;
  }();
  MuonRun run{.ranks = 4, .steps = 3, .model = &five};
  run.shard.layout = LayoutPolicy::even_rows;  // every matrix is cut
  run.muon.mode = MuonMode::owner;
  run.muon.transient_bytes = 1;  // one matrix each
  run.look = [](RankContext& r, Muon& m) {
    EXPECT_EQ(r.world->counts().at("all_to_all_v").calls, 3 * 5 * 2);
    for (auto& e : m.plans()[0].entries) EXPECT_EQ(e.mode, PlanMode::owner);
  };
  expect_equal_bits(train(run), train({.steps = 3, .model = &five}));
}

TEST(MuonModes, InexactPlansUseGramWhereOneRankWouldTakeLonger) {
  // One tall matrix on four ranks: an owner alone would work while three wait.
  static const std::vector<Described> tall = {{"m", {512, 16}, {}}};
  MuonRun run{.ranks = 4, .steps = 1, .model = &tall};
  run.muon.allow_inexact = true;
  run.look = [](RankContext&, Muon& m) {
    EXPECT_EQ(m.plans()[0].entries[0].mode, PlanMode::gram);
    EXPECT_EQ(m.plans()[0].entries[0].owners.size(), 4u);
  };
  EXPECT_LE(largest_relative_difference(train(run), train({.steps = 1, .model = &tall})), 1e-5);
}

TEST(MuonModes, OptionsThatNeedWholeMatricesRefuseTheOthers) {
  MuonRun run{.ranks = 2, .steps = 1};
  run.muon.orthogonalize.method = Orthogonalizer::svd;
  run.muon.tensor = MuonTensorMode::distributed;
  EXPECT_THROW(train(run), Error);
  run.muon.tensor = MuonTensorMode::duplicated;
  run.muon.mode = MuonMode::gram;
  EXPECT_THROW(train(run), Error);
  run.muon.mode = MuonMode::automatic;
  run.muon.allow_inexact = true;
  MuonRun one = run;
  one.ranks = 1;
  expect_equal_bits(train(run), train(one));
  run.muon.momentum = 1;
  EXPECT_THROW(train(run), Error);
}

TEST(MuonModes, TransientBytesAreBounded) {
  static const std::vector<Described> many = [] {
    std::vector<Described> list;
    for (int i = 0; i < 160; ++i) list.push_back({"m" + std::to_string(i), {24, 16 + i % 3}, {}});
    return list;
  }();
  const auto peak = [&](MuonMode mode, int64_t transient) {
    MuonRun run{.ranks = 4, .steps = 2, .model = &many};
    run.muon.mode = mode;
    run.muon.transient_bytes = transient;
    std::mutex mutex;
    int64_t most = 0;
    run.look = [&](RankContext& r, Muon&) {
      const std::lock_guard lock(mutex);
      int64_t mine = 0;
      for (auto& line : r.device->allocator().table())
        if (line.name.starts_with("muon")) mine += line.peak_bytes;
      most = std::max(most, mine);
    };
    train(run);
    return most;
  };
  // Memory comes in multiples of 512 bytes, so that every one of the ten buffers may take that much more.
  const int64_t matrix = 18 * 24 * 4, slack = 10 * 512;
  for (const MuonMode mode : {MuonMode::owner, MuonMode::gather}) {
    for (const int64_t factor : {10, 30, 60})
      EXPECT_LE(peak(mode, factor * matrix), factor * matrix + slack) << name_of(mode) << " " << factor;
    // A bound below one matrix's needs means: one matrix at a time.
    EXPECT_LE(peak(mode, 1), 10 * matrix + slack) << name_of(mode);
    EXPECT_GT(peak(mode, int64_t{1} << 30), 60 * matrix + slack) << "the bound is what bounds";
  }
  EXPECT_LE(peak(MuonMode::gram, 60 * matrix), 60 * matrix + 2 * slack);
}

TEST(MuonModes, ImpossibleModesAreRefusedOnEveryRank) {
  MuonRun run{.ranks = 4};
  run.muon.mode = MuonMode::gram;
  try {
    train(run);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("wide 3 x 20"));
  }
}

}  // namespace
}  // namespace sherd::test
