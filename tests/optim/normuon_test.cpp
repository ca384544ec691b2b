// NorMuon, an optimizer on top of Muon's plan, against its formula in double.

#include <cmath>

#include "optim/double_matrices.h"
#include "optim/matrix_rules.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

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
  const double mu = double{o.muon.whole.momentum};
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
  const double rate = 0.2 * kMatrixRate * std::sqrt(static_cast<double>(m * n)) / norm_of(x);
  for (size_t i = 0; i < g.size(); ++i)
    p.weight[i] = p.weight[i] * (1 - kMatrixRate * kMatrixDecay) - rate * x[i];
}

/// Rows of a parameter that are one matrix, in their order.
std::vector<std::vector<size_t>> matrices_of(const DescribedMatrix& d) {
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
  const NorMuonOptions options;
  const MatrixRun run{.ranks = GetParam(), .steps = 3, .model = &every_matrix()},
      none{.steps = 0, .model = &every_matrix()};
  const UpdateRuleFactory normuon = NorMuon::factory(options);
  const OwnedValues::Map before = trained(normuon, none), after = trained(normuon, run);
  for (auto& d : every_matrix()) {
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
          g[i] = double{matrix_gradient(rows[i / cols] * cols + i % cols, step)};
        plain_step(p, g, m, cols, options);
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
    EXPECT_LE(largest_difference(after.at(d.name), weight), run.steps * 0.2 * kMatrixRate * error * 4)
        << d.name;
    EXPECT_LE(largest_difference(after.at(d.name + " second_momentum_buffer"), moment), 0.15 * error)
        << d.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NorMuonRanks, ::testing::Values(1, 3, 4, 12));

TEST(NorMuon, GramEntriesAgreeToRounding) {
  static const DescribedMatrices tall = {{"a", {37, 5}}, {"fused", {24, 6}, stacked_blocks({7, 9, 8})}};
  const OwnedValues::Map expected = trained(NorMuon::factory(), {.steps = 1, .model = &tall});
  for (const int ranks : {2, 4}) {
    const OwnedValues::Map got = trained(NorMuon::factory({.muon = {.whole = {.mode = MatrixMode::gram}}}),
                                         {.ranks = ranks, .steps = 1, .model = &tall});
    for (auto& d : tall) {
      const std::vector<float>& w = expected.at(d.name);
      // Same as in FollowsTheFormula, for one step.
      EXPECT_LE(largest_difference(got.at(d.name), Doubles(w.begin(), w.end())),
                0.2 * kMatrixRate * 4 * 4 * 485 * 8 * std::pow(2.0, -24));
    }
  }
}

TEST(NorMuon, UpdatesHaveTheRmsOfMuonsWhateverTheShape) {
  const UpdateRuleFactory normuon = NorMuon::factory({.muon = {.scale_factor = 0.5}});
  const OwnedValues::Map after = trained(normuon, {.ranks = 2, .steps = 1, .model = &every_matrix()}),
                         before = trained(normuon, {.ranks = 2, .steps = 0, .model = &every_matrix()});
  for (auto& d : every_matrix()) {
    double squares = 0;
    const std::vector<float>&a = after.at(d.name), &b = before.at(d.name);
    for (size_t i = 0; i < a.size(); ++i)
      squares += std::pow(double{a[i]} - double{b[i]} * (1 - kMatrixRate * kMatrixDecay), 2);
    // Weights of 0.1 round to 2^-27 of one, which is 2^-27 / (0.1 lr) = 4e-6 of an update.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(a.size())) / (0.5 * 0.2 * kMatrixRate), 1, 1e-5)
        << d.name;
  }
}

TEST(NorMuonMisuse, OptionsThatCannotBeAreAllNamed) {
  NorMuonOptions o;
  o.muon.whole.momentum = 1;
  o.muon.scale = MuonScale::spectral;
  o.beta2 = 1;
  o.eps = 0;
  EXPECT_THAT(
      NorMuon::factory(o).problems,
      testing::ElementsAre(HasSubstr("momentum 1"), HasSubstr("scale spectral must be match_rms_adamw"),
                           HasSubstr("beta2 1"), HasSubstr("eps 0")));
  launch(1, [&](RankContext& r) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { NorMuon(*r.device, {}, o); }),
                AllOf(HasSubstr("NorMuon: "), HasSubstr("momentum 1"), HasSubstr("beta2 1")));
  });
}

TEST(NorMuonMisuse, DifferentOptionsOfRanksAreReported) {
  launch(2, [](RankContext& r) {
    MatrixModel model;
    const Routing routing = route(model, {.rules = {{.pattern = ".", .algorithm = NorMuon::kName}}});
    fully_shard(model, mesh_of(r));
    NorMuonOptions o;
    o.beta2 = r.world->rank() == 0 ? 0.9 : 0.95;
    EXPECT_THROW(Optimizer(model, routing, {.further = {NorMuon::factory(o)}}), ShapeMismatch);
  });
}

}  // namespace
}  // namespace sherd::test
