#include "arrangement.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/fsdp/bucket_plan.h>
#include <sherd/fsdp/layout_param.h>
#include <sherd/optim/muon/muon_rule.h>
#include <sherd/optim/soap.h>

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

// The model's units as fully_shard() would see them, and which parameters of the model theirs are.
struct Units {
  std::vector<PlanUnit> units;  // in order of first use
  std::vector<std::vector<int>> members;
};

Units units_of(const Arrangement& a) {
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
           .options = {.strategy = a.options.per_unit ? Strategy::optim_grads_params : Strategy::optim_grads,
                       .layout = a.options.layout.policy,
                       .packing = a.options.layout.packing,
                       .bucket_elements = a.options.bucket_elements},
           .root = p.unit == "root",
           .align = a.options.align});
      all.members.emplace_back();
    }
    all.members[it->second].push_back(static_cast<int>(i));
    all.units[it->second].params.push_back({.name = p.name,
                                            .shape = p.shape,
                                            .cut = cut_of(p),
                                            .row_blocks = stacked_blocks(p.blocks),
                                            .dtype = p.dtype,
                                            .tied = p.tied,
                                            .master = p.master});
  }
  int position = 0;
  for (PlanUnit& u : all.units) u.position = u.root ? static_cast<int>(all.units.size()) - 1 : position++;
  return all;
}

std::string suffix_of(Master m) { return m == Master::f32 ? "" : fmt::format(", master {}", name_of(m)); }

// Muon's matrices of all units, in buckets that span units.
void add_buckets(Arrangement& a, const Units& all) {
  std::vector<BucketPlan> buckets = plan_buckets(all.units);
  for (size_t k = 0; k < buckets.size();) {
    const int number = buckets[k].buffer;
    const GroupPlan& first = buckets[k].group;
    Buffer buffer{
        fmt::format("whole_param/{}{}", name_of(first.dtype), suffix_of(first.master)), first.dtype, {}};
    for (; k < buckets.size() && buckets[k].buffer == number; ++k) {
      const BucketPlan& b = buckets[k];
      std::vector<int> params;
      for (size_t i = 0; i < b.units.size(); ++i)
        params.push_back(all.members[b.units[i]][b.group.params[i]]);
      add(a, buffer, b.begin.value, *b.group.layout, std::move(params));
    }
    a.buffers.push_back(std::move(buffer));
  }
}

void add_units(Arrangement& a, const Units& all) {
  const std::vector<std::vector<GroupPlan>> groups = plan_units(all.units);
  for (size_t u = 0; u < groups.size(); ++u) {
    for (const GroupPlan& g : groups[u]) {
      std::vector<int> params;
      for (const int p : g.params) params.push_back(all.members[u][p]);
      Buffer buffer{
          fmt::format("{}/{}{}{}", g.unit, name_of(g.dtype), suffix_of(g.master), g.suffix()), g.dtype, {}};
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
  if (a.options.soap)
    a.work = std::make_shared<SoapRule>(SoapOptions{});
  else
    a.work = std::make_shared<MuonRule>();
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
  a.plan = make_plan(a.matrices, a.options.world, 1, *a.work, {.state_weight = a.options.state_weight});
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
  const Units all = units_of(a);
  add_buckets(a, all);
  add_units(a, all);
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
