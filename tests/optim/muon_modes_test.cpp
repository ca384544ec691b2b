// Muon over shards: what its modes promise beside the bits of one rank (matrix_rules_test.cpp); options by name.

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "optim/matrix_rules.h"

#include "support/message_of.h"

namespace sherd::test {
namespace {

/// Norm of the difference over that of `b`, of the parameter in which that is largest.
double largest_relative_difference(const OwnedValues::Map& a, const OwnedValues::Map& b) {
  double worst = 0;
  for (const auto& [name, values] : b) {
    if (name.find(' ') != name.npos) continue;  // state
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{a.at(name)[i]} - double{values[i]}, 2);
      norm += std::pow(double{values[i]}, 2);
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

TEST(MuonModes, LocalEqualsOneRankWhereMatricesAreWhole) {
  // Two units' worth of equal matrices on two ranks: no boundary cuts any.
  static const DescribedMatrices pair = {{"a", {8, 16}}, {"b", {8, 16}}};
  MatrixRun run{.ranks = 2, .model = &pair};
  run.look = [](RankContext& r, UpdateRule&) {
    EXPECT_EQ(r.world->counts().count("all_to_all_v"), 0u);
    EXPECT_EQ(r.world->counts().count("all_gather_v"), 0u);
  };
  EXPECT_EQ(other_bits(trained(Muon::factory({.whole = {.mode = MatrixMode::local}}), run),
                       trained(Muon::factory({}), {.model = &pair})),
            "");
}

TEST(MuonModes, ModesOfOneModelAgreeUnderThreeMicrobatches) {
  // The plan runs where the optimizer runs (toy model; thirds round).
  const auto toy = [](MatrixMode mode) {
    ToyRun run{.ranks = 4, .accumulate = 3, .rows = 48, .optimizer = Algorithm::muon};
    run.muon.whole.mode = mode;
    return run_toy(run);
  };
  const ToyResult a = toy(MatrixMode::owner), b = toy(MatrixMode::gather);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.losses, b.losses);
}

TEST(MuonModes, GramAgreesToRounding) {
  static const DescribedMatrices tall = {{"a", {37, 5}},
                                         {"fused", {24, 6}, stacked_blocks({7, 9, 8})},
                                         {"square", {8, 8}},
                                         {"column", {9, 1}},
                                         {"single", {1, 1}}};
  for (const IterationForm form : {IterationForm::standard, IterationForm::gram, IterationForm::by_shape}) {
    MuonOptions muon;
    muon.orthogonalize.form = form;
    const OwnedValues::Map one = trained(Muon::factory(muon), {.steps = 1, .model = &tall});
    for (const int ranks : {2, 4, 8}) {
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
        const MatrixRun run{.ranks = ranks, .steps = 1, .shard = {.layout = layout}, .model = &tall};
        MuonOptions gram = muon;
        gram.whole.mode = MatrixMode::gram;
        // Gram matrices of at most 8 x 8 whose sums round in another order: a few ulp through five steps,
        // each of which multiplies errors by at most a = 3.4; 3.4^5 * 8 * 6e-8 is 2e-4 of a singular value
        // near zero, and far less of the norm.
        EXPECT_LE(largest_relative_difference(trained(Muon::factory(gram), run), one), 1e-5) << ranks;
        // Restarts and small messages make no difference beyond that.
        gram.whole.transient_bytes = 1;
        if (form != IterationForm::standard) gram.orthogonalize.restarts = {2};
        EXPECT_LE(largest_relative_difference(trained(Muon::factory(gram), run), one), 1e-5) << ranks;
      }
    }
  }
}

TEST(MuonModes, ScaleAndDecayByName) {
  for (const MatrixDecay d :
       {MatrixDecay::decoupled, MatrixDecay::independent, MatrixDecay::l2, MatrixDecay::palm}) {
    const UpdateRuleFactory muon = Muon::factory({.whole = {.decay = d}});
    EXPECT_EQ(other_bits(trained(muon, {.ranks = 4, .steps = 1}), trained(muon, {.steps = 1})), "")
        << name_of(d);
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
  EXPECT_DOUBLE_EQ(decay_factor(MatrixDecay::decoupled, 0.1, 0.2), 0.98);
  EXPECT_DOUBLE_EQ(decay_factor(MatrixDecay::independent, 0.1, 0.2), 0.8);
  EXPECT_DOUBLE_EQ(decay_factor(MatrixDecay::palm, 0.1, 0.2), 0.998);
  EXPECT_DOUBLE_EQ(decay_factor(MatrixDecay::l2, 0.1, 0.2), 1);
  EXPECT_EQ(parse_muon_mode("auto"), MatrixMode::automatic);
  EXPECT_EQ(parse_muon_scale("match_rms_adamw"), MuonScale::match_rms_adamw);
  EXPECT_THROW(parse_muon_decay("none"), InvalidArgument);
}

TEST(MuonModes, InexactPlansUseGramWhereOneRankWouldTakeLonger) {
  // One tall matrix on four ranks: an owner alone would work while three wait.
  static const DescribedMatrices tall = {{"m", {512, 16}}};
  MatrixRun run{.ranks = 4, .steps = 1, .model = &tall};
  run.look = [](RankContext&, UpdateRule& rule) {
    const PlanEntry& entry = whole_matrices_of(rule).plans()[0].entries[0];
    EXPECT_EQ(entry.mode, PlanMode::gram);
    EXPECT_EQ(entry.owners.size(), 4u);
  };
  EXPECT_LE(largest_relative_difference(trained(Muon::factory({.whole = {.allow_inexact = true}}), run),
                                        trained(Muon::factory({}), {.steps = 1, .model = &tall})),
            1e-5);
}

TEST(MuonModes, OptionsThatNeedWholeMatricesRefuseTheOthers) {
  const auto train = [](const MuonOptions& o, int ranks) {
    return trained(Muon::factory(o), {.ranks = ranks, .steps = 1});
  };
  MuonOptions o;
  o.orthogonalize.method = Orthogonalizer::svd;
  o.whole.tensor = MatrixTensorMode::distributed;
  EXPECT_THROW(train(o, 2), Error);
  o.whole.tensor = MatrixTensorMode::duplicated;
  o.whole.mode = MatrixMode::gram;
  EXPECT_THROW(train(o, 2), Error);
  o.whole.mode = MatrixMode::automatic;
  o.whole.allow_inexact = true;
  EXPECT_EQ(other_bits(train(o, 2), train(o, 1)), "");
  o.whole.momentum = 1;
  EXPECT_THROW(train(o, 2), Error);
}

TEST(MuonModes, TransientBytesAreBounded) {
  static const DescribedMatrices many = [] {
    DescribedMatrices list;
    for (int i = 0; i < 160; ++i) list.push_back({"m" + std::to_string(i), {24, 16 + i % 3}});
    return list;
  }();
  const auto peak = [&](MatrixMode mode, int64_t transient) {
    std::mutex mutex;
    int64_t most = 0;
    MatrixRun run{.ranks = 4, .steps = 2, .model = &many};
    run.look = [&](RankContext& r, UpdateRule&) {
      const std::lock_guard lock(mutex);
      int64_t mine = 0;
      for (auto& line : r.device->allocator().table())
        if (line.name.starts_with("muon")) mine += line.peak_bytes;
      most = std::max(most, mine);
    };
    (void)trained(Muon::factory({.whole = {.mode = mode, .transient_bytes = transient}}), run);
    return most;
  };
  // Memory comes in multiples of 512 bytes, so that every one of the ten buffers may take that much more.
  const int64_t matrix = 18 * 24 * 4, slack = 10 * 512;
  for (const MatrixMode mode : {MatrixMode::owner, MatrixMode::gather}) {
    for (const int64_t factor : {10, 30, 60})
      EXPECT_LE(peak(mode, factor * matrix), factor * matrix + slack) << name_of(mode) << " " << factor;
    // A bound below one matrix's needs means: one matrix at a time.
    EXPECT_LE(peak(mode, 1), 10 * matrix + slack) << name_of(mode);
    EXPECT_GT(peak(mode, int64_t{1} << 30), 60 * matrix + slack) << "the bound is what bounds";
  }
  EXPECT_LE(peak(MatrixMode::gram, 60 * matrix), 60 * matrix + 2 * slack);
}

TEST(MuonModes, DistributedTensorPartsAgreeToRounding) {
  for (const IterationForm form : {IterationForm::standard, IterationForm::gram, IterationForm::by_shape}) {
    MuonOptions muon;
    muon.orthogonalize.form = form;
    const OwnedValues::Map expected = trained_pieces(Muon::factory(muon), {}, false, 1);
    muon.whole.tensor = MatrixTensorMode::distributed;
    MuonOptions restarted = muon;
    if (form != IterationForm::standard) restarted.orthogonalize.restarts = {1, 3};
    // As in GramAgreesToRounding. The weights are of size one and change by lr * 0.2 * sqrt(24) = 0.02, so that 1e-5 of
    // them is 5e-4 of the update.
    for (const Spread& spread : kMatrixSpreads)
      for (const MuonOptions& o : {muon, restarted})
        EXPECT_LE(largest_relative_difference(trained_pieces(Muon::factory(o), spread, false, 1), expected),
                  1e-5);
  }
}

TEST(MuonModes, RanksWithOtherRestartsAreRefused) {
  EXPECT_THAT(message_of<ShapeMismatch>([] {
                launch(2, [](RankContext& r) {
                  Pieces model(r, {.tp = 2});
                  model.wrap({});
                  MuonOptions o;
                  o.whole.tensor = MatrixTensorMode::distributed;
                  o.orthogonalize.form = IterationForm::gram;
                  o.orthogonalize.restarts = {2 + r.world->rank()};
                  Muon(*r.device, matrix_items(model), o);
                });
              }),
              HasSubstr("different Muon plans"));
}

TEST(MuonModes, ScaleIsThatOfTheWholeMatrixThatTensorParallelismCuts) {
  // An orthogonalized [24, 5] block of 12 rows has Frobenius norm sqrt(5): the update's norm shows the scale.
  const OwnedValues::Map after = trained_pieces(Muon::factory({}), {.tp = 2}, false, 1),
                         before = trained_pieces(Muon::factory({}), {.tp = 2}, false, 0);
  double squares = 0;
  for (size_t i = 0; i < 12 * 5; ++i)
    squares += std::pow(
        double{after.at("qkv")[i]} - double{before.at("qkv")[i]} * (1 - kMatrixRate * kMatrixDecay), 2);
  // Jordan's coefficients leave singular values between 0.7 and 1.2.
  const double unit = kMatrixRate * 0.2 * std::sqrt(12.0);
  EXPECT_GT(std::sqrt(squares), unit * 0.6 * std::sqrt(5.0));
  EXPECT_LT(std::sqrt(squares), unit * 1.3 * std::sqrt(5.0));
}

TEST(MuonModes, ImpossibleModesAreRefusedOnEveryRank) {
  EXPECT_THAT(message_of<Error>(
                  [] { (void)trained(Muon::factory({.whole = {.mode = MatrixMode::gram}}), {.ranks = 4}); }),
              HasSubstr("wide 3 x 20"));
}

}  // namespace
}  // namespace sherd::test
