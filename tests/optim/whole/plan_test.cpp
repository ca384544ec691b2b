// Plans for whole matrices as arithmetic: balance, bytes, refusals.

#include <deque>
#include <numeric>

#include <sherd/base/error.h>
#include <sherd/optim/muon/muon_rule.h>
#include <sherd/optim/soap.h>
#include <sherd/optim/whole/make_plan.h>
#include <sherd/optim/whole/plan_text.h>

#include "support/message_of.h"

namespace sherd {
namespace {

MatrixPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                     const MomentumOptions& options) {
  return sherd::make_plan(matrices, cells, replicas, MuonRule(), options);
}

struct Spec {
  std::string name;
  Shape shape;
  bool muon = true;
  RowBlocks blocks = {};
};

/// Layouts of a list of units, and the matrices in them.
struct Model {
  std::deque<ShardLayout> layouts;
  std::vector<LogicalMatrix> matrices;
  Model(const std::vector<std::vector<Spec>>& units, int world, LayoutPolicy policy) {
    int rotation = 0;
    for (auto& unit : units) {
      std::vector<LayoutParam> params;
      for (auto& s : unit) params.push_back({s.name, s.shape, s.muon ? CutClass::row : CutClass::element});
      layouts.push_back(ShardLayout::make(params, world, {.policy = policy, .rotation = rotation++}));
      for (size_t i = 0; i < unit.size(); ++i) {
        if (!unit[i].muon) continue;
        const auto more = logical_matrices(unit[i].name, unit[i].shape, unit[i].blocks, {}, layouts.back(),
                                           static_cast<int>(i));
        matrices.insert(matrices.end(), more.begin(), more.end());
      }
    }
  }
};

std::vector<std::vector<Spec>> transformer(int layers, int64_t d, int64_t ffn) {
  std::vector<std::vector<Spec>> units;
  for (int i = 0; i < layers; ++i) {
    const std::string b = "blocks." + std::to_string(i) + ".";
    units.push_back({{b + "norm1", {d}, false},
                     {b + "qkv", {3 * d, d}, true, stacked_blocks({d, d, d})},
                     {b + "proj", {d, d}},
                     {b + "norm2", {d}, false},
                     {b + "gate_up", {2 * ffn, d}, true, stacked_blocks({ffn, ffn})},
                     {b + "down", {d, ffn}}});
  }
  return units;
}

std::vector<double> recomputed_loads(const Model& model, const MatrixPlan& plan) {
  std::vector<double> load(static_cast<size_t>(plan.team()), 0);
  for (size_t i = 0; i < model.matrices.size(); ++i)
    for (int t : plan.entries[i].owners) load[static_cast<size_t>(t)] += MuonRule().cost(model.matrices[i]);
  return load;
}

class Balance : public ::testing::TestWithParam<std::tuple<int, LayoutPolicy>> {};

TEST_P(Balance, OfA32LayerTransformer) {
  const auto [world, policy] = GetParam();
  const Model model(transformer(32, 4096, 11008), world, policy);
  const MatrixPlan plan = make_plan(model.matrices, world, 1, {});
  EXPECT_LE(plan.imbalance, 1.10);
  EXPECT_LE(plan.redundancy, 1.05);
  const auto load = recomputed_loads(model, plan);
  double sum = 0, largest = 0;
  for (auto& m : model.matrices) {
    sum += MuonRule().cost(m);
    largest = std::max(largest, MuonRule().cost(m));
  }
  EXPECT_NEAR(*std::max_element(load.begin(), load.end()) / std::max(sum / world, largest), plan.imbalance,
              1e-9);
  EXPECT_NEAR(std::accumulate(load.begin(), load.end(), 0.0) / sum, plan.redundancy, 1e-9);
  for (auto& e : plan.entries) EXPECT_EQ(e.owners.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Plan, Balance,
                         ::testing::Combine(::testing::Values(1, 2, 3, 8, 64, 256, 1024),
                                            ::testing::Values(LayoutPolicy::ragged, LayoutPolicy::even_rows,
                                                              LayoutPolicy::whole_param)));

/// Blocks of Llama 3 8B; of Kimi K2 the attention and 384 experts with the shared one.
std::vector<std::vector<Spec>> named_model(const std::string& name) {
  std::vector<std::vector<Spec>> units;
  for (int i = 0; i < 32 && name == "llama3-8b"; ++i)
    units.push_back({{"q", {4096, 4096}},
                     {"kv", {2048, 4096}, true, stacked_blocks({1024, 1024})},
                     {"o", {4096, 4096}},
                     {"gate_up", {28672, 4096}, true, stacked_blocks({14336, 14336})},
                     {"down", {4096, 14336}}});
  for (int i = 0; i < 60 && name == "kimi-k2"; ++i)
    units.push_back({{"q_a", {1536, 7168}},
                     {"q_b", {12288, 1536}},
                     {"kv_a", {576, 7168}},
                     {"kv_b", {16384, 512}},
                     {"o", {7168, 8192}},
                     {"gate_up", {385, 4096, 7168}, true, stacked_blocks({2048, 2048})},
                     {"down", {385, 7168, 2048}}});
  return units;
}

// Figures beside the least possible: an even share, or the largest single matrix where ranks outnumber them.
TEST(Plan, StateBytesAndCostAreBalancedTogether) {
  const SoapRule soap({});
  for (const char* name : {"llama3-8b", "kimi-k2"})
    for (const int world : {8, 64, 256, 1024}) {
      const Model model(named_model(name), world, LayoutPolicy::even_rows);
      const MatrixPlan plan = make_plan(model.matrices, world, 1, soap, {});
      double flops = 0, bytes = 0, largest_flops = 0, largest_bytes = 0, most_flops = 0, most_bytes = 0;
      for (auto& m : model.matrices) {
        largest_flops = std::max(largest_flops, soap.flops(m));
        largest_bytes = std::max(largest_bytes, static_cast<double>(soap.state_bytes(m)));
      }
      for (const PlanRank& r : plan.ranks) {
        flops += r.flops / world;
        bytes += static_cast<double>(r.state_bytes) / world;
        most_flops = std::max(most_flops, r.flops);
        most_bytes = std::max(most_bytes, static_cast<double>(r.state_bytes));
      }
      EXPECT_LE(most_flops, 1.15 * std::max(flops, largest_flops)) << name << " " << world;
      EXPECT_LE(most_bytes, 1.10 * std::max(bytes, largest_bytes)) << name << " " << world;
      RecordProperty(std::string(name) + "_" + std::to_string(world),
                     std::to_string(most_flops / std::max(flops, largest_flops)) + " " +
                         std::to_string(most_bytes / std::max(bytes, largest_bytes)));
    }
}

TEST(Plan, OwnersMoveAtMostTwiceTheMatrixAndSumsAgree) {
  const Model model(transformer(4, 64, 160), 4, LayoutPolicy::even_rows);
  const MatrixPlan plan = make_plan(model.matrices, 4, 1, {.mode = MatrixMode::owner});
  int64_t in = 0, out = 0, total = 0;
  for (size_t i = 0; i < model.matrices.size(); ++i) {
    // Blocks of a fused parameter are spread unevenly over the ranks; their average is bounded.
    total += plan.entries[i].bytes;
    EXPECT_LE(plan.entries[i].bytes, 2 * 4 * model.matrices[i].numel());
    if (model.matrices[i].block.empty()) {
      EXPECT_LE(plan.entries[i].bytes, 2 * 4 * model.matrices[i].numel() * 3 / 4);
    }
  }
  for (auto& r : plan.ranks) {
    in += r.bytes_in;
    out += r.bytes_out;
  }
  EXPECT_EQ(in, total);
  EXPECT_EQ(out, total);
}

TEST(Plan, MatricesOnOneRankStayAndMoveNothing) {
  // One rank: everything is local.
  const Model one(transformer(2, 64, 160), 1, LayoutPolicy::ragged);
  const MatrixPlan plan = make_plan(one.matrices, 1, 1, {});
  for (auto& e : plan.entries) {
    EXPECT_EQ(e.mode, PlanMode::local);
    EXPECT_EQ(e.bytes, 0);
  }
  // Two equal matrices on two ranks: cut by no boundary.
  const Model two({{{"a", {8, 16}}, {"b", {8, 16}}}}, 2, LayoutPolicy::ragged);
  const MatrixPlan halves = make_plan(two.matrices, 2, 1, {.mode = MatrixMode::local});
  EXPECT_NE(halves.entries[0].owners, halves.entries[1].owners);
  EXPECT_DOUBLE_EQ(halves.imbalance, 1);
}

TEST(Plan, RanksWithoutARowTakeWork) {
  // Eight cheap local matrices fill two ranks' loads; a fresh rank exists only as an owner of the others.
  const Model model({{{"a", {64, 64}}, {"b", {64, 64}}, {"c", {64, 64}}}}, 8, LayoutPolicy::ragged);
  const MatrixPlan plan = make_plan(model.matrices, 8, 1, {});
  std::vector<int> owners;
  for (auto& e : plan.entries) owners.push_back(e.owners[0]);
  std::sort(owners.begin(), owners.end());
  EXPECT_EQ(std::unique(owners.begin(), owners.end()), owners.end()) << "three ranks work";
}

TEST(Plan, LocalWorkThatBreaksTheBalanceMoves) {
  // One rank holds everything of a layout with a huge neighbour.
  std::vector<Spec> unit = {{"embed", {1 << 20, 1}, false}};
  for (int i = 0; i < 6; ++i) unit.push_back({"m" + std::to_string(i), {32, 32}});
  const Model model({unit}, 4, LayoutPolicy::ragged);
  const MatrixPlan plan = make_plan(model.matrices, 4, 1, {});
  EXPECT_LE(plan.imbalance, 4.0 / 3 + 1e-9) << "six equal matrices on four ranks";
  const MatrixPlan forced = make_plan(model.matrices, 4, 1, {.mode = MatrixMode::local});
  EXPECT_GT(forced.imbalance, 2) << "a forced mode is not touched";
}

TEST(Plan, ImpossibleModesNameTheMatrices) {
  const Model model(transformer(2, 64, 160), 4, LayoutPolicy::ragged);
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { (void)make_plan(model.matrices, 4, 1, {.mode = MatrixMode::local}); }),
              ::testing::AllOf(HasSubstr("gate_up 0"), HasSubstr("whole_param")));
  try {
    (void)make_plan(model.matrices, 4, 1, {.mode = MatrixMode::gram});
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), HasSubstr("blocks.1.down 64 x 160"));
    EXPECT_THAT(e.what(), ::testing::Not(HasSubstr("proj"))) << "square ones are fine";
  }
}

TEST(Plan, GramOwnersHoldWholeRows) {
  const Model model({{{"m", {37, 5}}}}, 4, LayoutPolicy::ragged);
  const MatrixPlan plan = make_plan(model.matrices, 4, 1, {.mode = MatrixMode::gram});
  const PlanEntry& e = plan.entries[0];
  EXPECT_EQ(e.mode, PlanMode::gram);
  ASSERT_EQ(e.first_row.size(), e.owners.size() + 1);
  EXPECT_EQ(e.first_row.front(), 0);
  EXPECT_EQ(e.first_row.back(), 37);
  for (size_t i = 0; i + 1 < e.first_row.size(); ++i) EXPECT_LT(e.first_row[i], e.first_row[i + 1]);
}

TEST(Plan, TheExampleInTheHeaderIsTrue) {
  const Model model({{{"up", {4096, 64}}, {"down", {64, 4096}}}}, 2, LayoutPolicy::even_rows);
  const MatrixPlan plan = make_plan(model.matrices, 2, 1, {.allow_inexact = true});
  const PlanEntry &up = plan.entries[0], &down = plan.entries[1];
  EXPECT_EQ(up.mode, PlanMode::gram);
  EXPECT_EQ(up.owners, (std::vector<int>{0, 1}));
  EXPECT_EQ(up.first_row, (std::vector<int64_t>{0, 2048, 4096}));
  EXPECT_EQ(up.bytes, 2 * 81920);
  EXPECT_EQ(up.flops, 2 * 127139840.0);
  EXPECT_EQ(down.mode, PlanMode::owner);
  EXPECT_EQ(down.owners, std::vector<int>{0});
  EXPECT_EQ(down.bytes, 2 * 524288);
  EXPECT_EQ(down.flops, 252968960.0);
  EXPECT_EQ(plan.ranks[1].bytes_in, 81920 + 524288);
}

TEST(Plan, GatherIsAsRedundantAsThereAreRanks) {
  const Model model(transformer(2, 64, 160), 4, LayoutPolicy::ragged);
  const MatrixPlan plan = make_plan(model.matrices, 4, 1, {.mode = MatrixMode::gather});
  EXPECT_DOUBLE_EQ(plan.redundancy, 4);
}

TEST(Plan, ReplicasShareTheWorkWhereThatIsFaster) {
  const Model model(transformer(4, 256, 640), 2, LayoutPolicy::ragged);
  MomentumOptions fast_net{.mode = MatrixMode::automatic};
  fast_net.costs = {.flops_per_second = 1e9, .bytes_per_second = 1e12};
  const MatrixPlan spread = make_plan(model.matrices, 2, 4, fast_net);
  EXPECT_EQ(spread.copies, 4);
  EXPECT_EQ(spread.team(), 8);
  EXPECT_DOUBLE_EQ(spread.redundancy, 1);
  MomentumOptions slow_net = fast_net;
  slow_net.costs = {.flops_per_second = 1e15, .bytes_per_second = 1e6};
  const MatrixPlan apart = make_plan(model.matrices, 2, 4, slow_net);
  EXPECT_EQ(apart.copies, 1);
  EXPECT_DOUBLE_EQ(apart.redundancy, 4);
}

TEST(Plan, IsAPureFunctionWithAFingerprint) {
  const Model a(transformer(3, 64, 160), 4, LayoutPolicy::ragged),
      b(transformer(3, 64, 160), 4, LayoutPolicy::ragged);
  const MatrixPlan x = make_plan(a.matrices, 4, 1, {}), y = make_plan(b.matrices, 4, 1, {});
  EXPECT_EQ(x.fingerprint, y.fingerprint);
  const MatrixPlan z = make_plan(a.matrices, 4, 1, {.mode = MatrixMode::gather});
  EXPECT_NE(x.fingerprint, z.fingerprint);
  const std::string text = explain(x, MuonRule(), a.matrices);
  EXPECT_THAT(text, HasSubstr("imbalance"));
  EXPECT_THAT(text, HasSubstr("blocks.0.qkv 1"));
}

TEST(Plan, FormsByShapeAreInTheFlopsTheCostAndTheText) {
  MuonOptions options;
  const auto rule_of = [&](IterationForm form) {
    options.orthogonalize.form = form;
    return MuonRule(options);
  };
  const MuonRule standard = rule_of(IterationForm::standard), gram = rule_of(IterationForm::gram),
                 by_shape = rule_of(IterationForm::by_shape);
  const Model model({{{"square", {64, 64}}, {"below", {191, 64}}, {"tall", {192, 64}}, {"wide", {64, 192}}}},
                    2, LayoutPolicy::even_rows);
  const MatrixPlan plan = sherd::make_plan(model.matrices, 2, 1, by_shape, {});
  for (size_t i = 0; i < model.matrices.size(); ++i) {
    const LogicalMatrix& m = model.matrices[i];
    const MuonRule& form = i < 2 ? standard : gram;
    EXPECT_EQ(by_shape.flops(m), form.flops(m)) << m.name;
    EXPECT_EQ(by_shape.cost(m), form.flops(m)) << m.name;
    EXPECT_EQ(plan.entries[i].flops, form.flops(m)) << m.name;
    EXPECT_EQ(by_shape.note(m), i < 2 ? "standard" : "gram") << m.name;
  }
  EXPECT_THAT(
      explain(plan, by_shape, model.matrices),
      ::testing::AllOf(HasSubstr("form by_shape, 5 steps"), ::testing::ContainsRegex("below .* standard\n"),
                       ::testing::ContainsRegex("tall .* gram\n")));
}

/// An optimizer that inverts a matrix of the shorter side's size, without a gram form.
class InverseWork : public MatrixWork {
 public:
  std::string name() const override { return "Inverse"; }
  std::string description() const override { return "no options"; }
  std::vector<int64_t> options_as_words() const override { return {}; }
  double cost(const LogicalMatrix& m) const override { return flops(m); }
  double flops(const LogicalMatrix& m) const override {
    const double side = static_cast<double>(std::min(m.rows, m.cols));
    return side * side * side;
  }
  int64_t tensor_bytes(const LogicalMatrix&) const override { return 0; }
  bool gram_is_possible(const LogicalMatrix&) const override { return false; }
  double gram_flops(const LogicalMatrix&, int) const override { return 0; }
  int64_t gram_bytes(const LogicalMatrix&, int) const override { return 0; }
};

TEST(Plan, AnotherOptimizerBalancesItsOwnCost) {
  // The long matrix is the most expensive one by Muon's cost; the square ones are by that of an inverse.
  const Model model({{{"long", {4096, 16}}, {"a", {64, 64}}, {"b", {64, 64}}}}, 2, LayoutPolicy::even_rows);
  const InverseWork work;
  const MatrixPlan plan = make_plan(model.matrices, 2, 1, work, {.allow_inexact = true});
  EXPECT_NE(plan.entries[1].owners, plan.entries[2].owners);
  EXPECT_EQ(plan.entries[1].flops, 64.0 * 64 * 64);
  for (auto& e : plan.entries) EXPECT_EQ(e.mode, PlanMode::owner);
  EXPECT_THAT(explain(plan, work, model.matrices),
              HasSubstr("Inverse plan: 3 matrices over 2 ranks; no options"));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { (void)make_plan(model.matrices, 2, 1, work, {.mode = MatrixMode::gram}); }),
              HasSubstr("Inverse mode gram: 3 of 3 matrices"));
}

TEST(LogicalMatrix, BlocksOfStacksAndStridesCoverTheParameterOnce) {
  const ShardLayout layout = ShardLayout::make({{"m", {4, 24, 5}, CutClass::element}}, 7,
                                               {.policy = LayoutPolicy::ragged, .align = 1});
  for (const RowBlocks& blocks :
       {RowBlocks{}, stacked_blocks({7, 17}), interleaved_blocks(24, 2), grouped_query_blocks(3, 2, 2),
        grouped_query_blocks(2, 2, 2, true), head_blocks(6, 4)}) {
    const auto all = logical_matrices("m", {4, 24, 5}, blocks, {}, layout, 0);
    std::vector<int> seen(4 * 24 * 5, 0);
    for (auto& m : all) {
      int64_t on_cells = 0;
      std::vector<int> inside(static_cast<size_t>(m.numel()), 0);
      const auto cells = m.cells();
      for (int c = 0; c < 7; ++c) {
        int64_t here = 0;
        m.for_runs(layout.piece(ParamId(0), RankId(c)), [&](int64_t at, int64_t in, int64_t n) {
          for (int64_t k = 0; k < n; ++k) {
            ++seen[static_cast<size_t>(at + k)];
            ++inside[static_cast<size_t>(in + k)];
            const int64_t row = (in + k) / 5;
            EXPECT_EQ(m.place.row(row) * 5 + (in + k) % 5, at + k);
          }
          here += n;
        });
        EXPECT_EQ(here, m.elements_on(c));
        if (here > 0) {
          EXPECT_GE(c, cells.first);
          EXPECT_LE(c, cells.last);
        }
        on_cells += here;
      }
      EXPECT_EQ(on_cells, m.numel());
      for (int n : inside) EXPECT_EQ(n, 1);
    }
    for (int n : seen) EXPECT_EQ(n, 1);
  }
}

TEST(MuonTransient, IsAShareOfTheDevicesMemory) {
  constexpr int64_t mib = int64_t{1} << 20, gib = int64_t{1} << 30;
  EXPECT_EQ(MuonOptions().whole.transient_bytes, 0);  // that is, the default
  EXPECT_EQ(default_transient_bytes(0, 0), 256 * mib);
  EXPECT_EQ(default_transient_bytes(0, gib), 256 * mib);
  EXPECT_EQ(default_transient_bytes(141 * gib, 0), 141 * gib / 32);
  EXPECT_EQ(default_transient_bytes(80 * gib, 16 * gib), 512 * mib);
  EXPECT_EQ(default_transient_bytes(4 * gib, 0), 256 * mib);
  // Batches of matrices of 4096 x 4096 on an H200, where 256 MiB leave every one alone.
  const int64_t matrix = 4096 * 4096 * 4, buffers = 10;
  EXPECT_GE(default_transient_bytes(141 * gib, 0) / buffers, 6 * matrix);
  EXPECT_LT(256 * mib / buffers, matrix);
}

}  // namespace
}  // namespace sherd
