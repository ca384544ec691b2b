// A flipped bit in each kind of memory of which several ranks hold copies, one after another.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>
#include <sherd/train/guards/replica_check.h>

#include "support/message_of.h"
#include "support/toy_model.h"
#include "train/guards/flip_bit.h"

namespace sherd::test {
namespace {

struct ReplicaArrangement {
  Strategy strategy;
  int weight_copies, state_copies;  // ranks that hold the same elements
  int replicas = 1;
  Outer outer = Outer::no_shard;
  int tp = 1;
  LayoutPolicy layout = LayoutPolicy::ragged;
};

// Arrangements of four ranks.
const ReplicaArrangement kArrangements[] = {
    {Strategy::no_shard, 4, 4},
    {Strategy::optim, 4, 1},
    {Strategy::optim, 4, 2, 2},
    {Strategy::optim, 4, 2, 2, Outer::no_shard, 1, LayoutPolicy::even_rows},
    {Strategy::optim, 4, 2, 2, Outer::no_shard, 1, LayoutPolicy::whole_param},
    {Strategy::optim, 4, 1, 2, Outer::optim},
    {Strategy::optim_grads, 4, 2, 2},
    {Strategy::optim_grads, 4, 2, 1, Outer::no_shard, 2},
    {Strategy::optim_grads_params, 1, 1},
    {Strategy::optim_grads_params, 2, 2, 2},
    {Strategy::optim_grads_params, 2, 2, 2, Outer::no_shard, 1, LayoutPolicy::even_rows},
    {Strategy::optim_grads_params, 2, 1, 2, Outer::optim},
    {Strategy::optim_grads_params, 2, 2, 1, Outer::no_shard, 2},
};

/// dtype of weights in use, and forms between steps.
struct Forms {
  DType compute = DType::f32;
  Master master = Master::f32;
  DType state = DType::f32;
};
const Forms kForms[] = {
    {}, {DType::bf16}, {DType::bf16, Master::bf16, DType::bf16}, {DType::bf16, Master::split}};

std::string show(const ReplicaArrangement& a, const Forms& f) {
  return fmt::format("{} replicas {} outer {} tp {} layout {} {} master {}", name_of(a.strategy), a.replicas,
                     name_of(a.outer), a.tp, static_cast<int>(a.layout), name_of(f.compute),
                     name_of(f.master));
}

/// With a table that is the same on all ranks, and statistics that are not.
class Model : public ToyModel {
 public:
  explicit Model(const DeviceMesh& mesh) : ToyModel(16, 32, 1) {
    param("cut.weight", {12}, normal(1)).set_tensor_shard({"tp", 0, mesh.size("tp"), mesh.coordinate("tp")});
    param("soap.weight", {6, 4}, normal(1));
    table = buffer("table", {5}, DType::f32, constant(1));
    statistics = buffer("statistics", {5}, DType::f32, constant(0));
    statistics.set_per_rank();
  }
  Buffer table, statistics;
};

/// A trained model whose matrices go to NorMuon, Muon and SOAP, and the rest to AdamW.
struct Trained {
  Trained(RankContext& r, const ReplicaArrangement& a, const Forms& f)
      : rank(r),
        mesh(r.world, {{"replicate", a.replicas}, {"shard", 4 / a.replicas / a.tp}, {"tp", a.tp}}),
        model(mesh) {
    const Routing routing = route(model, {.optimizer = Algorithm::adamw,
                                          .rules = {{"up.weight", NorMuon::kName},
                                                    {"down.weight", Algorithm::muon},
                                                    {"soap.weight", Soap::kName}}});
    FullyShardOptions o;
    o.strategy = a.strategy, o.outer = a.outer, o.layout = a.layout;
    o.compute_dtype = f.compute, o.master = f.master;
    for (auto& b : model.blocks_) fully_shard(*b, mesh, o);
    fully_shard(model, mesh, o, {.allow_unused = true});
    optimizer.emplace(
        model, routing,
        OptimizerOptions{.state_dtype = f.state, .further = {NorMuon::factory(), Soap::factory()}});
    Stream& s = r.device->compute();
    const Tensor tokens = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    model.targets = Tensor::empty(*r.device, {1, 6}, DType::i32, "test");
    ops::fill(s, tokens, 3);
    ops::fill(s, model.targets, 4);
    ops::fill(s, model.statistics.data(), r.world->rank());
    for (int step = 0; step < 2; ++step) {
      run_pass(model, tokens);
      clip_grad_norm(model, 1.0);
      optimizer->step(0.01);
    }
    (void)check_replicas(model, &*optimizer);  // brings weights that rest elsewhere up to date
  }
  RankContext& rank;
  DeviceMesh mesh;
  Model model;
  std::optional<Optimizer> optimizer;
};

/// Memory of this rank under the check's names: the parameter, the memory, and its number of holders.
struct Memory {
  std::string what, parameter;
  Tensor values;
  int copies;
};

/// `cut.weight` is spread over the tensor-parallel ranks; all other parameters are whole on each.
int copies_of(const Parameter& p, int copies, const ReplicaArrangement& a) {
  return p.tensor_shard() ? copies / a.tp : copies;
}

/// Weights of all units are where unshard() reads them, or that memory itself where they rest whole.
std::vector<Memory> memory_of(Trained& t, const ReplicaArrangement& a) {
  std::vector<Memory> all;
  const bool whole = a.weight_copies == 4;
  for (auto& unit : runtime_of(t.model).units()) {
    unit->unshard();
    unit->wait();
    for (const Parameter& p : unit->params()) {
      const Tensor data = whole ? p.data() : p.model_copy().defined() ? p.model_copy() : p.shard();
      all.push_back({"weights", p.name(), data, copies_of(p, a.weight_copies, a)});
      const char* const masters =
          p.group().plan().master == Master::f32 ? "fp32 master weights" : "master weights";
      if (p.group().has_masters())
        all.push_back({masters, p.name(), p.shard(), copies_of(p, a.state_copies, a)});
      if (p.shard_low().defined())
        all.push_back(
            {"low halves of master weights", p.name(), p.shard_low(), copies_of(p, a.state_copies, a)});
    }
    unit->reshard();
  }
  for (const StateTensor& s : t.optimizer->state())
    all.push_back({fmt::format("optimizer state '{}'", s.key), s.param.name(), s.local,
                   copies_of(s.param, a.state_copies, a)});
  for (const OwnedState& s : t.optimizer->owned_state()) {
    int copies = 1;
    for (const std::string& dim : s.repeated) copies *= t.mesh.size(dim);
    all.push_back({fmt::format("optimizer state '{}'", s.key), s.param.name(), s.local, copies});
  }
  for (const StateCounter& c : t.optimizer->counters())
    all.push_back({fmt::format("optimizer counter '{}'", c.key), c.param.name(), c.value, 4});
  all.push_back({"buffer", "table", t.model.table.data(), 4});
  return all;
}

TEST(ReplicaCheck, AFlippedBitOfEachKindIsFoundUnderEveryStrategyLayoutAndPrecision) {
  constexpr int kRank = 2;
  bool owned_state_found = false;  // a plan may have one owner among the replicas
  for (const ReplicaArrangement& a : kArrangements)
    for (const Forms& forms : kForms) {
      SCOPED_TRACE(show(a, forms));
      std::set<std::string> found;
      launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
        Trained t(r, a, forms);
        EXPECT_THAT(check_replicas(t.model, &*t.optimizer).differences, IsEmpty());
        for (const Memory& m : memory_of(t, a)) {
          const bool here = r.world->rank() == kRank && m.values.numel() > 0;
          Stream& s = r.device->compute();
          if (here) flip_lowest_bit(s, m.values, m.values.numel() / 2);
          const ReplicaCheck check = check_replicas(t.model, &*t.optimizer);
          if (here) flip_lowest_bit(s, m.values, m.values.numel() / 2);
          if (!here) continue;
          SCOPED_TRACE(m.what + " of " + m.parameter);
          ASSERT_EQ(check.differences.size(), m.copies == 1 ? 0u : 1u) << check.describe();
          if (m.copies == 1) continue;
          const ReplicaDifference& d = check.differences.front();
          EXPECT_EQ(d.what, m.what);
          EXPECT_EQ(d.parameter, m.parameter);
          EXPECT_EQ(d.ranks.size() + d.majority.size(), static_cast<size_t>(m.copies));
          EXPECT_EQ(std::count(d.ranks.begin(), d.ranks.end(), kRank), 1);
          EXPECT_EQ(d.ranks.size(), m.copies == 2 ? 2u : 1u);
          EXPECT_THAT(check.describe(), HasSubstr(m.parameter));
          found.insert(m.what);
        }
        EXPECT_THAT(check_replicas(t.model, &*t.optimizer).differences, IsEmpty());
      });
      std::set<std::string> expected = {"optimizer counter 'step'", "buffer"};
      if (a.weight_copies > 1) expected.insert("weights");
      // Elsewhere this rank may hold nothing of one of the two matrices.
      if (a.state_copies > 1 && a.layout != LayoutPolicy::whole_param && a.tp == 1) {
        expected.insert({"optimizer state 'exp_avg'", "optimizer state 'exp_avg_sq'",
                         "optimizer state 'momentum_buffer'", "optimizer state 'second_momentum_buffer'"});
        if (forms.compute == DType::bf16 && forms.master == Master::f32)
          expected.insert("fp32 master weights");
        if (forms.master == Master::split) expected.insert("low halves of master weights");
      }
      EXPECT_THAT(expected, ::testing::IsSubsetOf(found));
      owned_state_found = owned_state_found || found.contains("optimizer state 'soap_left_basis'");
    }
  EXPECT_TRUE(owned_state_found);
}

}  // namespace
}  // namespace sherd::test
