#include "arrangement.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <sherd/dtensor/layer_wise.h>
#include <sherd/fsdp/group_plan.h>
#include <sherd/fsdp/layout_param.h>
#include <sherd/kernels/device/error.h>

namespace sherd::tools {
namespace {

constexpr int64_t kMaxMatrices = int64_t{1} << 20;

CutClass cut_of(const ParamEntry& p) {
  return p.optimizer == Algorithm::muon ? CutClass::row : CutClass::element;
}

void add(Arrangement& a, Buffer& buffer, int64_t start, ShardLayout layout, std::vector<int> params) {
  for (size_t p = 0; p < params.size(); ++p)
    a.places[params[p]] = {static_cast<int>(a.buffers.size()), static_cast<int>(buffer.buckets.size()),
                           static_cast<int>(p)};
  buffer.elements += layout.buffer_elements();
  buffer.padding += layout.padding();
  buffer.buckets.push_back({start, std::move(layout), std::move(params)});
}

// Muon's matrices of all units, in buckets that span units.
void add_layer_wise(Arrangement& a) {
  std::vector<std::pair<DType, std::vector<int>>> by_dtype;  // in order of first use
  for (size_t i = 0; i < a.model.size(); ++i) {
    if (a.model[i].optimizer != Algorithm::muon) continue;
    const DType t = a.model[i].dtype;
    auto it = std::find_if(by_dtype.begin(), by_dtype.end(), [&](auto& g) { return g.first == t; });
    if (it == by_dtype.end()) it = by_dtype.insert(by_dtype.end(), {t, {}});
    it->second.push_back(static_cast<int>(i));
  }
  for (auto& [dtype, params] : by_dtype) {
    std::vector<LayerWiseParam> matrices;
    for (int i : params) {
      const ParamEntry& p = a.model[i];
      matrices.push_back({layout_param(p.name, p.shape, cut_of(p), stacked_blocks(p.blocks)), p.tied});
    }
    auto layout = LayerWiseLayout::make(matrices, a.options.world,
                                        {.packing = a.options.layout.packing,
                                         .bucket_elements = a.options.bucket_elements,
                                         .align = a.options.align});
    Buffer buffer{fmt::format("whole_param/{}", name_of(dtype)), dtype, {}};
    for (LayerWiseBucket& b : layout.buckets) {
      const auto first = params.begin() + b.first_param;
      const auto count = static_cast<std::ptrdiff_t>(b.layout.params().size());
      add(a, buffer, b.begin.value, std::move(b.layout), {first, first + count});
    }
    a.buffers.push_back(std::move(buffer));
  }
}

// The model's units as fully_shard() would see them, and which parameters of the model theirs are.
struct Units {
  std::vector<PlanUnit> units;  // in order of first use
  std::vector<std::vector<int>> members;
};

Units units_of(const Arrangement& a, bool without_matrices) {
  Units all;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < a.model.size(); ++i) {
    const ParamEntry& p = a.model[i];
    const auto [it, fresh] = index.try_emplace(p.unit, all.units.size());
    if (fresh) {
      all.units.push_back(
          {.name = p.unit,
           .params = {},
           .mesh = {{"shard", a.options.world}},
           .options = {.layout = a.options.layout.policy, .packing = a.options.layout.packing},
           .root = p.unit == "root",
           .align = a.options.align});
      all.members.emplace_back();
    }
    if (without_matrices && p.optimizer == Algorithm::muon) continue;
    all.members[it->second].push_back(static_cast<int>(i));
    all.units[it->second].params.push_back({.name = p.name,
                                            .shape = p.shape,
                                            .cut = cut_of(p),
                                            .row_blocks = stacked_blocks(p.blocks),
                                            .dtype = p.dtype});
  }
  int position = 0;
  for (PlanUnit& u : all.units) u.position = u.root ? static_cast<int>(all.units.size()) - 1 : position++;
  return all;
}

void add_units(Arrangement& a, bool without_matrices) {
  const Units all = units_of(a, without_matrices);
  const std::vector<std::vector<GroupPlan>> groups = plan_units(all.units);
  for (size_t u = 0; u < groups.size(); ++u) {
    for (const GroupPlan& g : groups[u]) {
      std::vector<int> params;
      for (const int p : g.params) params.push_back(all.members[u][p]);
      Buffer buffer{fmt::format("{}/{}{}", g.unit, name_of(g.dtype), g.suffix()), g.dtype, {}};
      add(a, buffer, 0, *g.layout, std::move(params));
      a.buffers.push_back(std::move(buffer));
    }
  }
}

void check_total(const Arrangement& a) {  // each buffer fits by itself
  int64_t total = 0;
  for (const Buffer& b : a.buffers)
    if (__builtin_add_overflow(total, b.elements, &total))
      throw InvalidArgument(
          fmt::format("{} buffers on {} ranks in slices that are a multiple of {} have more elements than "
                      "64 bits count; "
                      "use fewer ranks, a smaller align, or fewer units and dtypes",
                      a.buffers.size(), a.options.world, a.options.align));
}

void add_plan(Arrangement& a) {
  a.plan_options = plan_options(MuonOptions{});
  for (size_t i = 0; i < a.model.size(); ++i) {
    const ParamEntry& p = a.model[i];
    if (p.optimizer != Algorithm::muon) continue;
    const ParamPlace& at = a.places[i];
    for (auto& m :
         logical_matrices(p.name, p.shape, stacked_blocks(p.blocks), {}, a.bucket_of(at).layout, at.param)) {
      a.matrices.push_back(std::move(m));
      a.matrix_param.push_back(static_cast<int>(i));
    }
  }
  a.plan = make_plan(a.matrices, a.options.world, 1, a.plan_options);
}

}  // namespace

Arrangement Arrangement::make(std::vector<ParamEntry> model, const ArrangeOptions& options) {
  int64_t total = 0, matrices = 0;
  for (const ParamEntry& p : model) {
    total += numel_of(p.shape);
    if (p.optimizer != Algorithm::muon) continue;
    const auto blocks = std::max<int64_t>(1, static_cast<int64_t>(p.blocks.size()));
    const int64_t stack = p.shape.size() == 3 ? p.shape[0] : 1;
    if (stack > kMaxMatrices / blocks || (matrices += stack * blocks) > kMaxMatrices)
      throw InvalidArgument(
          fmt::format("up to '{}' of shape {} Muon has more than {} matrices to plan for: stacks "
                      "are [count, rows, cols], and smaller matrices belong to adamw",
                      p.name, to_string(p.shape), kMaxMatrices));
  }
  // Padding at most doubles a slice, and a slice has at most all elements.
  const int64_t most = std::numeric_limits<int64_t>::max() / 8 / options.world;
  if (total > most)
    throw InvalidArgument(fmt::format(
        "the model has {} elements; on {} ranks at most {} can be laid out in 64-bit arithmetic: use fewer "
        "ranks or describe a smaller model",
        total, options.world, most));
  Arrangement a;
  a.model = std::move(model);
  a.options = options;
  a.places.resize(a.model.size());
  const bool spans_units = options.layout.policy == LayoutPolicy::whole_param && !options.per_unit;
  if (spans_units) add_layer_wise(a);
  add_units(a, spans_units);
  check_total(a);
  add_plan(a);
  return a;
}

uint64_t Arrangement::fingerprint() const {
  uint64_t h = plan.fingerprint;
  for (const Buffer& buffer : buffers)
    for (const Bucket& b : buffer.buckets)
      h = (h ^ b.layout.fingerprint()) * 0x9e3779b97f4a7c15ull + (h >> 29);
  return h;
}

}  // namespace sherd::tools
