// Rules of whole matrices in a table, a model with matrices of every kind, and runs of both.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/weights_change.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>

#include "optim/whole_tensors.h"

#include "support/owned_values.h"
#include "support/pieces.h"

namespace sherd::test {

/// x / (1 + (largest element + sum of all)^2): every element of the result depends on the whole matrix.
struct LargestRule : MatrixRule {
  explicit LargestRule(std::string words = "by the largest") : words_(std::move(words)) {}
  std::string name() const override { return "Whole"; }
  std::string settings() const override { return words_; }
  double matrix_flops(int64_t rows, int64_t cols) const override {
    return static_cast<double>(3 * rows * cols);
  }
  double scale(int64_t rows, int64_t) const override { return 1.0 / static_cast<double>(rows); }
  void compute(Stream& s, const Tensor& out, const Tensor& in, const Tensor&) override {
    s.submit("whole", [=](ExecutionContext&) {
      const int64_t n = in.size(1) * in.size(2);
      for (int64_t at = 0; at < in.numel(); at += n) {
        const float *x = in.data<float>() + at, sum = std::accumulate(x, x + n, 0.0f);
        const float largest = *std::max_element(x, x + n) + sum;
        for (int64_t i = 0; i < n; ++i) out.data<float>()[at + i] = x[i] / (1 + largest * largest);
      }
    });
  }
  std::string words_;
};

/// Muon with these options of whole matrices.
struct MatrixRuleRow {
  const char* name;
  UpdateRuleFactory (*factory)(const MomentumOptions&);
  bool has_state = false;  // of whole matrices: each is computed once
  bool sums_rows = false;  // over ranks, beside the messages
};

inline const MatrixRuleRow kMatrixRules[] = {
    {"Muon", [](const MomentumOptions& o) { return Muon::factory({.whole = o}); }},
    {"MuonGramForm",
     [](const MomentumOptions& o) {
       MuonOptions muon{.whole = o};
       muon.orthogonalize.form = IterationForm::gram;
       return Muon::factory(muon);
     }},
    {"MuonFormsByShape",
     [](const MomentumOptions& o) {
       MuonOptions muon{.whole = o};
       muon.orthogonalize.form = IterationForm::by_shape;
       return Muon::factory(muon);
     }},
    {"MuonFraction",
     [](const MomentumOptions& o) {
       MuonOptions muon{.whole = o};
       muon.fraction = 0.25;
       muon.whole.allow_inexact = true;  // gram entries need all rows: none is made
       return Muon::factory(muon);
     }},
    {"NorMuon", [](const MomentumOptions& o) { return NorMuon::factory({.muon = {.whole = o}}); },
     /*has_state=*/false, /*sums_rows=*/true},
    {"Soap", [](const MomentumOptions& o) { return Soap::factory({.whole = o}); }, /*has_state=*/true},
    {"OwnRule",
     [](const MomentumOptions& o) {
       return WholeMatrices::factory(
           Algorithm("whole", CutClass::row, true), [] { return std::make_shared<LargestRule>(); }, o);
     }},
};

inline void PrintTo(const MatrixRuleRow& rule, std::ostream* os) { *os << rule.name; }

struct DescribedMatrix {
  std::string name;
  Shape shape;
  RowBlocks blocks = {};
  RestForms forms = {};
};
using DescribedMatrices = std::vector<DescribedMatrix>;
using MatrixStates = std::map<std::string, DType>;  // dtype of each parameter's state

/// Rest forms in turn.
inline RestForms form_in_turn(size_t i) {
  constexpr Master kMasters[] = {Master::bf16, Master::f32, Master::split};
  return {kMasters[i % 3], i / 3 % 2 == 0 ? DType::bf16 : DType::f32};
}

/// Keys and values of heads, which tensor parallelism assigns whole.
inline RowBlocks key_value_heads(int64_t heads, int64_t key, int64_t value) {
  RowBlocks blocks;
  for (int64_t h = 0; h < heads; ++h) {
    const std::string head = "head" + std::to_string(h);
    const int64_t begin = h * (key + value);
    blocks.push_back({head + ".k", begin, key, 0, 1, true});
    blocks.push_back({head + ".v", begin + key, value, 0, 1, true});
  }
  return blocks;
}

/// Fewer rows than ranks, rows that are cut, blocks, stacks, heads, and single rows and columns.
inline const DescribedMatrices& every_matrix() {
  static const DescribedMatrices list = {{"fused", {12, 8}, stacked_blocks({5, 3, 4})},
                                         {"wide", {3, 20}},
                                         {"square", {7, 7}},
                                         {"tall", {11, 3}},
                                         {"gate_up", {10, 6}, interleaved_blocks(10, 2)},
                                         {"attention", {16, 6}, grouped_query_blocks(2, 2, 2)},
                                         {"stack", {5, 4, 4}},
                                         {"fused_stack", {2, 7, 3}, stacked_blocks({4, 3})},
                                         {"heads", {10, 4}, key_value_heads(2, 2, 3)},
                                         {"row", {1, 9}},
                                         {"column", {9, 1}},
                                         {"square2", {7, 7}}};
  return list;
}

/// The same in every rest form.
inline const DescribedMatrices& every_form() {
  static const DescribedMatrices list = [] {
    DescribedMatrices all = every_matrix();
    for (size_t i = 0; i < all.size(); ++i) all[i].forms = form_in_turn(i);
    return all;
  }();
  return list;
}

/// Matrices with blocks of 64, 128 and 256 elements for state in 8 bits, cut by rows, blocks of rows and stacks, and some that have
/// none.
inline const DescribedMatrices& every_quantized() {
  static const DescribedMatrices list = [] {
    DescribedMatrices all = {{"fused", {72, 64}, stacked_blocks({30, 18, 24})},
                             {"small", {7, 7}},
                             {"wide", {16, 512}},
                             {"odd", {50, 100}},
                             {"square", {64, 128}},
                             {"stack", {5, 16, 64}},
                             {"tall", {131, 64}},
                             {"heads", {70, 64}, key_value_heads(7, 4, 6)}};
    for (size_t i = 0; i < all.size(); ++i) all[i].forms = {form_in_turn(i).master, DType::i8};
    return all;
  }();
  return list;
}

/// Returns the dtype of a parameter's state where `asked` is asked for, as Optimizer does.
inline DType state_of(const Parameter& p, DType asked) {
  return asked == DType::i8 && p.state_block() == 0 ? DType::bf16 : asked;
}

inline void set_master(Parameter& p, Master master) {
  if (master != Master::f32) p.set_compute_dtype(DType::bf16).set_master(master);
}

/// Element i of every rank's gradient. It has few bits: the average over up to 8 ranks, and sums of halves, are exact.
inline float matrix_gradient(size_t i, int step) {
  return static_cast<float>(
             static_cast<int>(i * i * 37 + i * 11 + static_cast<size_t>(step) * (29 + 7 * (i % 5))) % 61 -
             30) /
         64;
}

using GradientChange = std::function<void(const Parameter&, std::vector<float>&)>;

struct MatrixModel : MadeGradients {
  explicit MatrixModel(const DescribedMatrices& list = every_matrix(), CutClass cut = CutClass::row) {
    for (const auto& d : list) {
      Parameter p = param(d.name, d.shape, normal(0.1f));
      p.set_cut(cut);
      set_master(p, d.forms.master);
      states[d.name] = d.forms.state;
      if (!d.blocks.empty()) p.set_row_blocks(d.blocks);
    }
  }
  MatrixStates states;
  int step = 0, microbatches = 1;
  GradientChange change;
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (p.frozen()) continue;
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i) g[i] = matrix_gradient(i, step);
      if (change) change(p, g);
      for (float& v : g) v /= static_cast<float>(microbatches);
      const Tensor grad = p.grad();
      Stream& stream = grad.device().compute();
      const Tensor mine = Tensor::empty(grad.device(), grad.shape(), DType::f32, "test");
      ops::copy_from_host(stream, mine, g.data(), grad.nbytes());
      ops::scaled_add(stream, grad, 1, mine);
    }
  }
};

constexpr double kMatrixRate = 0.02, kMatrixDecay = 0.1;

/// The parameters that are matrices or stacks of them. @param states dtype of state by name, else f32.
inline std::vector<UpdateItem> matrix_items(ModuleBase& model, double decay = kMatrixDecay,
                                            const MatrixStates& states = {}) {
  std::vector<UpdateItem> items;
  for (auto& [name, p] : model.named_parameters()) {
    if (p.shape().size() < 2) continue;
    items.push_back({p, decay});
    if (states.contains(name)) items.back().state_dtype = state_of(p, states.at(name));
  }
  return items;
}

/// One update; gradients are final.
inline void update_by(UpdateRule& rule, ModuleBase& model, const Tensor& skip = {},
                      RestWindows* windows = nullptr) {
  ShardRuntime& runtime = runtime_of(model);
  WeightsChange change(runtime);
  if (windows != nullptr) windows->begin_step(runtime.state_ready());
  rule.step(runtime.device().compute(), kMatrixRate, skip);
  if (windows != nullptr) windows->end_step(runtime.device().compute());
  change.end();
}

/// Makes a rule whose state is at `place`; masters are where they are. Windows are so small that most parameters need several.
struct PlacedRule {
  std::shared_ptr<RestWindows> windows;
  std::unique_ptr<UpdateRule> rule;

  PlacedRule(const UpdateRuleFactory& factory, Device& device, std::vector<UpdateItem> items, Place place) {
    const bool quantized =
        std::ranges::any_of(items, [](const UpdateItem& i) { return i.state_dtype == DType::i8; });
    if (place == Place::host || quantized) windows = std::make_shared<RestWindows>(device, 1024);
    for (UpdateItem& item : items) {
      item.state_place = place;
      item.windows = windows;
      if (windows) windows->announce(item.param.shard());
      if (windows) windows->announce(item.param.shard_low());
    }
    rule = factory.make(device, std::move(items));
    if (windows) windows->allocate();
  }
};

/// The optimizer of whole matrices in a rule.
inline WholeMatrices& whole_matrices_of(UpdateRule& rule) {
  if (auto* normuon = dynamic_cast<NorMuon*>(&rule)) return normuon->muon();
  return dynamic_cast<WholeMatrices&>(rule);
}

/// Weights and state of every parameter, whole: "PARAMETER" and "PARAMETER KEY". Every rank adds.
inline void add_everything(OwnedValues& all, const std::vector<Parameter>& parameters,
                           const std::vector<StateTensor>& state, const std::vector<OwnedState>& owned,
                           Stream& s) {
  for (const Parameter& p : parameters) {
    all.add(p, p.name(), whole(p, p.shard(), s));
    if (p.shard_low().defined()) all.add(p, p.name() + " low", whole(p, p.shard_low(), s));
  }
  for (const StateTensor& t : state) {
    Tensor values = t.local;
    if (t.scales.defined()) {
      values = Tensor::empty(s.device(), {t.local.numel()}, DType::f32, "test");
      const BlockSegment segment{static_cast<uint8_t*>(t.local.raw()),
                                 t.scales.data<float>(),
                                 values.data<float>(),
                                 values.numel(),
                                 t.block,
                                 t.code};
      ops::dequantize(s, {&segment, 1});
    }
    all.add(t.param, t.param.name() + " " + t.key, whole(t.param, values, s));
  }
  all.add(owned, s);
}

struct MatrixRun {
  int ranks = 1, replicas = 1, steps = 4, microbatches = 1;
  FullyShardOptions shard = {};
  CutClass cut = CutClass::row;  // element: pieces begin and end within rows
  const DescribedMatrices* model = &every_form();
  /// Of state and masters. The results do not depend on it.
  Place place = ranks % 2 == 0 ? Place::host : Place::device;
  double decay = kMatrixDecay;
  GradientChange change = {};
  /// Every rank, after the last step.
  std::function<void(RankContext&, UpdateRule&)> look = {};
};

/// Trains by `factory`'s rule. Returns weights and state.
inline OwnedValues::Map trained(const UpdateRuleFactory& factory, const MatrixRun& run = {}) {
  OwnedValues all;
  launch(run.ranks, [&](RankContext& r) {
    MatrixModel model(*run.model, run.cut);
    model.change = run.change;
    model.microbatches = run.microbatches;
    FullyShardOptions shard = run.shard;
    shard.master_place = run.place;
    fully_shard(model, mesh_of(r, run.replicas), shard);
    const PlacedRule made(
        factory, *r.device,
        matrix_items(model, run.decay, factory.heeds_state_dtype ? model.states : MatrixStates{}), run.place);
    UpdateRule* const rule = made.rule.get();
    Stream& s = r.device->compute();
    for (model.step = 0; model.step < run.steps; ++model.step) {
      for (int micro = 0; micro < run.microbatches; ++micro) {
        runtime_of(model).set_last_microbatch(micro + 1 == run.microbatches);
        run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      }
      update_by(*rule, model, {}, made.windows.get());
    }
    s.synchronize();
    if (run.look) run.look(r, *rule);
    add_everything(all, model.own_parameters(), rule->state(), rule->owned_state(), s);
  });
  return all.values();
}

/// The same of Pieces, which tensor and expert parallelism cut. `heads`: rows and fused rows are of heads.
inline OwnedValues::Map trained_pieces(const UpdateRuleFactory& factory, const Spread& spread,
                                       bool heads = false, int steps = 3,
                                       Strategy strategy = Strategy::optim_grads_params,
                                       bool quantized = false) {
  OwnedValues all;
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread, quantized ? 256 : 1);
    if (heads) {
      model.own_parameters()[0].set_row_blocks(key_value_heads(4 / spread.tp, 2, 4));
      model.own_parameters()[1].set_row_blocks(head_blocks(4 / spread.tp, 2));
      model.own_parameters()[2].set_row_blocks(key_value_heads(1, 3, 4));
    }
    std::vector<UpdateItem> items = matrix_items(model);
    std::vector<Parameter> parameters;
    for (size_t i = 0; i < items.size(); ++i) {
      parameters.push_back(items[i].param.set_cut(CutClass::row));
      set_master(items[i].param, form_in_turn(i).master);
      if (factory.heeds_state_dtype)
        items[i].state_dtype = quantized ? state_of(items[i].param, DType::i8) : form_in_turn(i).state;
    }
    const Place place = spread.experts > 1 ? Place::host : Place::device;
    model.wrap({.strategy = strategy, .master_place = place, .whole_state_blocks = quantized});
    const PlacedRule made(factory, *r.device, items, place);
    UpdateRule* const rule = made.rule.get();
    for (int step = 0; step < steps; ++step) {
      model.run(*r.device);
      update_by(*rule, model, {}, made.windows.get());
    }
    add_everything(all, parameters, rule->state(), rule->owned_state(), r.device->compute());
  });
  return all.values();
}

inline const Spread kMatrixSpreads[] = {{.tp = 2},
                                        {.tp = 4, .experts = 4},
                                        {.shard = 2},
                                        {.shard = 2, .tp = 2, .experts = 2},
                                        {.shard = 4, .tp = 2, .experts = 4},
                                        {.replicas = 2, .shard = 2, .tp = 2, .experts = 2},
                                        {.shard = 4, .experts = 2},
                                        {.replicas = 2, .tp = 4}};

}  // namespace sherd::test
