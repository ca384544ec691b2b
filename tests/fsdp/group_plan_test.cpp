// The plan of a model, made without devices and ranks, against the runtime that has them: groups, layouts,
// costs, slots, bytes of memory by class, bytes that a step moves.

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/comm/launcher.h>

#include "support/message_of.h"
#include "support/planned_model.h"

namespace sherd::test {
namespace {

// Blocks of a transformer: a norm, fused q, k and v, two matrices.
std::vector<TableParam> blocks(int count, int64_t d) {
  std::vector<TableParam> all;
  for (int i = 0; i < count; ++i) {
    const std::string u = "blocks." + std::to_string(i) + ".";
    all.push_back({.name = u + "norm", .shape = {d}});
    all.push_back(
        {.name = u + "qkv", .shape = {3 * d, d}, .matrix = true, .blocks = stacked_blocks({d, d, d})});
    all.push_back({.name = u + "up", .shape = {2 * d + 3, d}, .matrix = true});
    all.push_back({.name = u + "down", .shape = {d, 2 * d + 3}, .matrix = true});
  }
  return all;
}

std::vector<TableUnit> block_units(int count, bool reshard = true) {
  std::vector<TableUnit> all;
  for (int i = 0; i < count; ++i)
    all.push_back({.name = "blocks." + std::to_string(i), .reshard_after_forward = reshard});
  return all;
}

std::vector<TableParam> with(std::vector<TableParam> first, const std::vector<TableParam>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

const TableParam kEmbed = {.name = "embed", .shape = {31, 12}};

std::vector<TableParam> experts(const std::string& unit) {
  return {
      {.name = unit + ".router", .shape = {4, 12}},
      {.name = unit + ".fc", .shape = {4, 24, 12}, .matrix = true},
      {.name = unit + ".gate_up", .shape = {4, 48, 12}, .matrix = true, .blocks = stacked_blocks({24, 24})},
      {.name = unit + ".bias", .shape = {4, 24}},
      {.name = unit + ".out", .shape = {4, 12, 24}, .matrix = true}};
}

std::vector<TableModel> models() {
  const std::vector<MeshDim> four = {{"shard", 4}}, three = {{"shard", 3}};
  const std::vector<MeshDim> hsdp = {{"replicate", 2}, {"shard", 2}}, tp = {{"shard", 2}, {"tp", 2}};
  std::vector<TableModel> all;
  all.push_back({"blocks", block_units(3), with({kEmbed}, blocks(3, 12)), four});
  all.push_back(
      {"even rows in 16 bits",
       block_units(2),
       with({kEmbed}, blocks(2, 12)),
       three,
       {.compute_dtype = DType::bf16, .reduce_dtype = DType::bf16, .layout = LayoutPolicy::even_rows}});
  all.push_back({"whole matrices",
                 block_units(5),
                 with({kEmbed}, blocks(5, 12)),
                 four,
                 {.layout = LayoutPolicy::whole_param}});
  all.push_back({"ping pong with stacks",
                 {{"a"}, {"b"}},
                 with(with({kEmbed}, experts("a")), experts("b")),
                 three,
                 {.layout = LayoutPolicy::whole_param, .packing = Packing::ping_pong}});
  all.push_back({"stacks of experts",
                 {{"a"}, {"b"}},
                 with(with({kEmbed}, experts("a")), experts("b")),
                 three,
                 {.strategy = Strategy::optim}});
  {
    auto params = with({kEmbed}, blocks(2, 12));
    params[4].tied_in = "blocks.1";  // "down" of the first block, left to the root
    params[5].frozen = params[6].frozen = true;
    all.push_back({"tied and frozen", block_units(2), params, four, {.strategy = Strategy::optim_grads}});
  }
  {
    auto params = with({kEmbed}, blocks(2, 12));
    for (size_t i = 1; i < 5; ++i) params[i].frozen = true;
    all.push_back({"a frozen unit",
                   block_units(2),
                   params,
                   three,
                   {.compute_dtype = DType::bf16, .layout = LayoutPolicy::whole_param}});
  }
  {
    auto params = with({kEmbed}, blocks(2, 12));
    params[0].ignored = params[2].ignored = params[7].ignored = params[8].ignored = true;
    params[8].frozen = true;
    all.push_back({"ignored", block_units(2), params, four, {.layout = LayoutPolicy::whole_param}});
    all.push_back({"ignored, even rows", block_units(2), params, hsdp, {.layout = LayoutPolicy::even_rows}});
  }
  all.push_back({"replicas", block_units(3), with({kEmbed}, blocks(3, 12)), hsdp, {}});
  all.push_back({"replicas that split the state, whole matrices",
                 block_units(3),
                 with({kEmbed}, blocks(3, 12)),
                 hsdp,
                 {.outer = Outer::optim, .layout = LayoutPolicy::whole_param}});
  all.push_back({"replicas that split the state, even rows",
                 block_units(2),
                 with({kEmbed}, blocks(2, 12)),
                 hsdp,
                 {.strategy = Strategy::no_shard,
                  .outer = Outer::optim,
                  .compute_dtype = DType::bf16,
                  .reduce_dtype = DType::bf16,
                  .layout = LayoutPolicy::even_rows}});
  {
    auto params = with({kEmbed}, blocks(2, 12));
    for (auto& p : params)
      if (p.matrix) p.tensor_dim = p.name.ends_with("down") ? 1 : 0;
    all.push_back({"tensor parallel", block_units(2), params, tp, {.reduce_dtype = DType::bf16}});
    all.push_back({"tensor parallel, whole matrices",
                   block_units(2),
                   params,
                   tp,
                   {.strategy = Strategy::optim_grads, .layout = LayoutPolicy::whole_param}});
  }
  all.push_back({"tiny and empty units",
                 {{"empty"}, {"tiny"}, {"nothing"}},
                 {{.name = "scalar", .shape = {}},
                  {.name = "tiny.w", .shape = {1}},
                  {.name = "nothing.w", .shape = {0, 7}, .matrix = true},
                  {.name = "nothing.v", .shape = {0}}},
                 four,
                 {.layout = LayoutPolicy::even_rows}});
  all.push_back({"tiny and empty units, ragged",
                 {{"empty"}, {"tiny"}, {"nothing"}},
                 {{.name = "scalar", .shape = {}},
                  {.name = "tiny.w", .shape = {1}},
                  {.name = "nothing.w", .shape = {0, 7}, .matrix = true}},
                 four,
                 {}});
  all.push_back({"nested",
                 {{"a"}, {"a.b"}, {"a.b.c"}, {"a.d"}, {"e"}},
                 {{.name = "a.w", .shape = {9, 5}, .matrix = true},
                  {.name = "a.b.w", .shape = {40, 5}, .matrix = true},
                  {.name = "a.b.c.w", .shape = {17}},
                  {.name = "a.d.w", .shape = {64, 5}, .matrix = true},
                  {.name = "e.w", .shape = {33, 3}}},
                 four,
                 {},
                 {},
                 {.prefetch = 2, .overlap_reduce = false}});
  all.push_back({"kept between forward and backward",
                 block_units(3, false),
                 with({kEmbed}, blocks(3, 12)),
                 three,
                 {},
                 {},
                 {.prefetch = 0}});
  {
    TableModel m{"experts on a mesh of their own",
                 {{"a"}, {"a.experts", true}, {"b"}, {"b.experts", true}},
                 {kEmbed},
                 four,
                 {.layout = LayoutPolicy::whole_param},
                 {{"expert_shard", 2}, {"expert", 2}}};
    for (const std::string u : {"a", "b"}) {
      m.params.push_back({.name = u + ".q", .shape = {12, 12}, .matrix = true});
      m.params.push_back({.name = u + ".o", .shape = {12, 18}, .matrix = true});
      for (auto& p : experts(u + ".experts")) {
        if (p.name.ends_with("router")) continue;
        m.params.push_back(p);
        m.params.back().tensor_dim = 0;
        m.params.back().tensor_mesh_dim = "expert";
      }
    }
    all.push_back(std::move(m));
  }
  // Buckets that span units.
  for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads}) {
    for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{1500}}) {
      const FullyShardOptions o = {
          .strategy = strategy, .layout = LayoutPolicy::whole_param, .bucket_elements = size};
      const std::string what = fmt::format(", {} in buckets of {}", name_of(strategy), size);
      all.push_back({"blocks" + what, block_units(5), with({kEmbed}, blocks(5, 12)), four, o});
      FullyShardOptions other = o;
      other.outer = Outer::optim;
      other.compute_dtype = other.reduce_dtype = DType::bf16;
      all.push_back({"replicas" + what,
                     block_units(3),
                     with({kEmbed}, blocks(3, 12)),
                     hsdp,
                     other,
                     {},
                     {.overlap_reduce = false}});
      other = o;
      other.packing = Packing::size_match;
      auto params = with({kEmbed, {.name = "mix", .shape = {12, 12}, .matrix = true}}, blocks(3, 12));
      params[5].tied_in = "blocks.1";  // "down" of the first block, left to the root
      params[7].frozen = params[8].ignored = true;
      all.push_back({"tied, frozen, ignored, of the root" + what, block_units(3), params, three, other});
      all.push_back({"one rank" + what, block_units(2), params, {{"shard", 1}}, o});
      TableModel nested{"experts inside of blocks" + what,
                        {{"a"}, {"a.experts", true}, {"b"}, {"b.experts", true}},
                        {kEmbed},
                        four,
                        o,
                        {{"expert_shard", 2}, {"expert", 2}}};
      for (const std::string u : {"a", "b"}) {
        nested.params.push_back({.name = u + ".q", .shape = {12, 12}, .matrix = true});
        nested.params.push_back({.name = u + ".o", .shape = {12, 18}, .matrix = true});
        nested.params.push_back({.name = u + ".experts.fc",
                                 .shape = {4, 24, 12},
                                 .matrix = true,
                                 .tensor_dim = 0,
                                 .tensor_mesh_dim = "expert"});
      }
      all.push_back(std::move(nested));
    }
  }
  all.push_back({"replicas split the state of whole weights",
                 block_units(3),
                 with({kEmbed}, blocks(3, 12)),
                 hsdp,
                 {.strategy = Strategy::no_shard,
                  .outer = Outer::optim,
                  .layout = LayoutPolicy::whole_param,
                  .bucket_elements = 1}});
  all.push_back({"one rank",
                 block_units(2),
                 with({kEmbed}, blocks(2, 12)),
                 {{"shard", 1}},
                 {.compute_dtype = DType::bf16, .layout = LayoutPolicy::even_rows}});
  return all;
}

void on_ranks(int ranks, const std::function<void(RankContext&)>& body) {
  LaunchOptions options;
  options.device.kernels = parse_cpu_kernels(TEST_KERNELS);
  sherd::launch(ranks, options, body);
}

std::map<std::string, int64_t> bytes_by_name(const ModelPlan& plan) {
  std::map<std::string, int64_t> bytes;
  for (auto& b : plan.allocations()) bytes[b.name()] += b.bytes();
  return bytes;
}

// Returns the allocator's bytes under the names of planned buffers.
std::map<std::string, int64_t> bytes_by_name(Device& device) {
  std::map<std::string, int64_t> bytes;
  for (auto& line : device.allocator().table())
    for (const char* name : {"parameters", "master weights", "gradients", "unsharded parameters",
                             "unsharded gradients", "staging"})
      if (line.name == name && line.bytes > 0) bytes[name] = line.bytes;
  return bytes;
}

// Classes whose memory is all planned: collectives' messages and scratch have other users as well.
constexpr std::array kPlannedClasses = {MemoryClass::parameter, MemoryClass::master, MemoryClass::gradient,
                                        MemoryClass::gathered};

std::map<MemoryClass, int64_t> bytes_by_class(const ModelPlan& plan) {
  std::map<MemoryClass, int64_t> bytes = plan.bytes();
  std::map<MemoryClass, int64_t> planned;
  for (const MemoryClass kind : kPlannedClasses) planned[kind] = bytes[kind];
  return planned;
}

std::map<MemoryClass, int64_t> bytes_by_class(Device& device) {
  std::map<MemoryClass, int64_t> bytes;
  for (const MemoryClass kind : kPlannedClasses) bytes[kind] = device.allocator().live_bytes(kind);
  return bytes;
}

void expect_like(const GroupPlan& plan, const std::vector<std::string>& names, const ParamGroup& group) {
  SCOPED_TRACE(plan.unit + plan.suffix() + (plan.ignored ? ", ignored" : ""));
  std::vector<std::string> held;
  for (auto& p : group.params()) held.push_back(p.name());
  EXPECT_EQ(names, held);
  EXPECT_EQ(plan.unit, group.unit());
  EXPECT_EQ(plan.trainable(), group.params().front().trainable());
  EXPECT_EQ(plan.trainable(), group.trainable());
  EXPECT_EQ(plan.ignored, group.replicated());
  EXPECT_EQ(plan.layout->fingerprint(), group.layout().fingerprint());
  EXPECT_EQ(plan.layout->rank_cost(), group.layout().rank_cost());
  for (size_t p = 0; p < held.size(); ++p)
    EXPECT_EQ(packing_cost(plan.layout->params()[p]), packing_cost(group.layout().params()[p]));
  EXPECT_EQ(plan.axes.cell(), group.cell());
  EXPECT_EQ(plan.axes.state_split, group.sharded_over());
  for (int p = 0; p < static_cast<int>(held.size()); ++p) {
    const Parameter& param = group.params()[static_cast<size_t>(p)];
    EXPECT_EQ(plan.layout->piece(ParamId(p), RankId(plan.axes.cell())).size(), param.shard().numel());
    if (plan.trainable()) {
      EXPECT_EQ(param.grad_shard().numel(), param.shard().numel());
    }
  }
}

TEST(GroupPlan, AgreesWithTheRuntimeForEveryModel) {
  ASSERT_GE(models().size(), 12u);
  for (const TableModel& m : models()) {
    SCOPED_TRACE(m.name);
    std::vector<std::vector<PlanUnit>> described;  // by rank; no device exists yet
    std::vector<ModelPlan> plans;
    for (int rank = 0; rank < m.ranks(); ++rank) {
      described.push_back(describe(m, rank));
      plans.push_back(plan_model(described.back(), m.root));
    }
    std::mutex one_at_a_time;
    on_ranks(m.ranks(), [&](RankContext& r) {
      const auto rank = static_cast<size_t>(r.world->rank());
      const ModelPlan& plan = plans[rank];
      TableTree tree(r, m);
      ShardRuntime& runtime = runtime_of(tree.root());
      r.device->compute().synchronize();
      CommCounts before = r.world->counts();
      const auto allocated = bytes_by_name(*r.device);
      const auto by_class = bytes_by_class(*r.device);
      for (const bool last : {false, true}) {
        runtime.set_last_microbatch(last);
        const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
        run_pass(tree.root(), x);
      }
      r.device->compute().synchronize();
      CommCounts after = r.world->counts();
      const auto moved = [&](const char* verb) { return after[verb].bytes - before[verb].bytes; };

      const std::lock_guard lock(one_at_a_time);
      SCOPED_TRACE("rank " + std::to_string(rank));
      ASSERT_EQ(plan.units.size(), runtime.units().size());
      for (size_t u = 0; u < plan.units.size(); ++u) {
        EXPECT_EQ(plan.units[u].name, runtime.units()[u]->name());
        EXPECT_EQ(plan.units[u].root, runtime.units()[u]->root());
        const auto& groups = runtime.units()[u]->groups();
        ASSERT_EQ(plan.units[u].groups.size(), groups.size()) << plan.units[u].name;
        for (size_t g = 0; g < groups.size(); ++g) {
          std::vector<std::string> names;
          for (const int p : plan.units[u].groups[g].params)
            names.push_back(described[rank][u].params[static_cast<size_t>(p)].name);
          expect_like(plan.units[u].groups[g], names, *groups[g]);
        }
      }
      const std::vector<ParamGroup*> groups = runtime.groups();
      ASSERT_EQ(groups.size(), plan.groups().size());
      for (size_t k = 0; k < plan.buckets.size(); ++k) {
        const BucketPlan& b = plan.buckets[k];
        const ParamGroup& group = *groups[groups.size() - plan.buckets.size() + k];
        std::vector<std::string> names;
        for (size_t i = 0; i < b.units.size(); ++i) {
          const PlanUnit& unit = described[rank][static_cast<size_t>(b.units[i])];
          names.push_back(unit.params[static_cast<size_t>(b.group.params[i])].name);
          EXPECT_EQ(group.unit_of(static_cast<int>(i)), unit.name);
        }
        expect_like(b.group, names, group);
      }
      EXPECT_EQ(bytes_by_class(plan), bytes_by_class(*r.device)) << "behind two backwards";
      EXPECT_EQ(bytes_by_name(plan), allocated);
      EXPECT_EQ(bytes_by_class(plan), by_class);
      EXPECT_EQ(plan.bytes(), runtime.plan().bytes());
      const StepTraffic traffic = plan.traffic(2);
      EXPECT_EQ(traffic.all_gather, moved("all_gather"));
      EXPECT_EQ(traffic.reduce_scatter, moved("reduce_scatter"));
      EXPECT_EQ(traffic.all_reduce, moved("all_reduce"));
    });
  }
}

TEST(GroupPlan, EveryRankPlansTheSameBytes) {
  for (const TableModel& m : models()) {
    const ModelPlan first = plan_model(describe(m, 0), m.root);
    for (int rank = 1; rank < m.ranks(); ++rank) {
      const ModelPlan plan = plan_model(describe(m, rank), m.root);
      EXPECT_EQ(plan.bytes(), first.bytes()) << m.name;
      EXPECT_EQ(plan.traffic(), first.traffic()) << m.name;
    }
  }
}

TEST(GroupPlan, KindsDtypesAndIgnoredParametersHaveGroupsOfTheirOwn) {
  PlanUnit unit{.name = "u",
                .params = {{.name = "m", .shape = {8, 4}, .cut = CutClass::row},
                           {.name = "v", .shape = {8}},
                           {.name = "half", .shape = {8, 4}, .cut = CutClass::row, .dtype = DType::bf16},
                           {.name = "frozen", .shape = {5}, .trainable = false},
                           {.name = "ignored", .shape = {8, 4}, .cut = CutClass::row, .ignored = true},
                           {.name = "w", .shape = {4, 4}, .cut = CutClass::row}},
                .mesh = {{"shard", 2}}};
  const auto shape_of = [&] {
    CarriedCost carried;
    std::vector<std::string> groups;
    for (auto& g : plan_groups(unit, carried)) {
      std::string text = std::string(name_of(g.dtype)) + g.suffix() + (g.ignored ? ", ignored:" : ":");
      for (const int p : g.params) text += " " + unit.params[static_cast<size_t>(p)].name;
      groups.push_back(text);
    }
    return groups;
  };
  EXPECT_THAT(shape_of(),
              ElementsAre("f32: m v w", "bf16: half", "f32, frozen: frozen", "f32, ignored: ignored"));
  unit.options.layout = LayoutPolicy::whole_param;
  EXPECT_THAT(shape_of(), ElementsAre("f32, whole matrices: m w", "bf16, whole matrices: half", "f32: v",
                                      "f32, frozen: frozen", "f32, whole matrices, ignored: ignored"));
}

TEST(GroupPlan, BuffersNameTheirUseAndTheirSharedSlot) {
  const TableModel m = models().front();
  const ModelPlan plan = plan_model(describe(m, 0), m.root);
  const UnitPlan& block = plan.units[0];
  std::vector<std::string> classes;
  for (auto& b : block.groups[0].buffers) classes.emplace_back(name_of(b.memory));
  EXPECT_THAT(classes, ElementsAre("parameter", "gathered", "gradient", "gradient"));
  const PlannedBuffer* whole = block.groups[0].find(BufferUse::unsharded);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->slot, block.gather_slot);
  EXPECT_EQ(whole->lifetime, Lifetime::unsharded);
  EXPECT_EQ(whole->elements, block.groups[0].buffer_elements());
  // Two slots in turn for three blocks, and the root's own.
  EXPECT_EQ(plan.units[2].gather_slot, plan.units[0].gather_slot);
  EXPECT_NE(plan.units[1].gather_slot, plan.units[0].gather_slot);
  EXPECT_EQ(plan.gather_slots.size(), 3u);
  EXPECT_EQ(plan.gradient_slots.size(), 3u);
  EXPECT_TRUE(plan.staging.empty());
}

TEST(GroupPlan, AModelOn65536RanksIsPlannedWithoutAny) {
  TableModel m{"large",
               block_units(8),
               blocks(8, 1024),
               {{"replicate", 64}, {"shard", 1024}},
               {.compute_dtype = DType::bf16}};
  const ModelPlan plan = plan_model(describe(m, 65535), m.root);
  double elements = 0;
  for (auto& p : m.params) elements += static_cast<double>(numel_of(p.shape));
  auto bytes = plan.bytes();
  // Shards in bf16, fp32 masters and gradients; two units gathered, two with open gradients.
  const double share = elements / 1024, unit = elements / 8;
  EXPECT_NEAR(static_cast<double>(bytes[MemoryClass::parameter]), 2 * share, 0.05 * 2 * share);
  EXPECT_NEAR(static_cast<double>(bytes[MemoryClass::master]), 4 * share, 0.05 * 4 * share);
  EXPECT_NEAR(static_cast<double>(bytes[MemoryClass::gathered]), 2 * 2 * unit, 0.05 * 4 * unit);
  EXPECT_NEAR(static_cast<double>(bytes[MemoryClass::gradient]), 4 * (share + 2 * unit), 0.05 * 8 * unit);
  EXPECT_EQ(plan.units.back().groups.size(), 0u);
  EXPECT_EQ(plan.units[0].groups[0].axes.cell(), 1023);
}

}  // namespace
}  // namespace sherd::test
