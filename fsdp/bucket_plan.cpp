#include <sherd/fsdp/bucket_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include <sherd/dtensor/layer_wise.h>
#include <sherd/fsdp/layout_param.h>

namespace sherd {
namespace {

// Returns whether matrices of two units may be in one bucket. Ranks, placements and dtypes of their
// collectives must be equal.
bool alike(const PlanUnit& a, const PlanUnit& b) {
  const auto same_axis = [](const MeshAxis& x, const MeshAxis& y) {
    return x.name == y.name && x.size == y.size && x.coordinate == y.coordinate;
  };
  const FullyShardOptions &x = a.options, &y = b.options;
  return a.ranks_id == b.ranks_id && a.align == b.align &&
         std::equal(a.mesh.begin(), a.mesh.end(), b.mesh.begin(), b.mesh.end(), same_axis) &&
         x.strategy == y.strategy && x.outer == y.outer && x.gradient_ranks == y.gradient_ranks &&
         x.shard_dim == y.shard_dim && x.replicate_dim == y.replicate_dim && x.tensor_dim == y.tensor_dim &&
         x.context_dim == y.context_dim && x.reduce_dtype == y.reduce_dtype && x.grad_dtype == y.grad_dtype &&
         x.packing == y.packing && x.bucket_elements == y.bucket_elements;
}

// The parts of one LayerWiseLayout, in model order.
struct Matrices {
  const PlanUnit* unit;  // the first
  DType dtype;
  Master master;
  Place master_place;
  std::vector<std::pair<int, int>> members;  // unit, parameter
};

// Returns the matrices by layout. The root's are first: LayerWiseLayout fills buckets from the last to the
// first, and the root's backward ends last.
std::vector<Matrices> matrices_of(const std::vector<PlanUnit>& units) {
  std::vector<Matrices> all;
  for (const bool root : {true, false}) {
    for (size_t u = 0; u < units.size(); ++u) {
      const PlanUnit& unit = units[u];
      if (unit.root != root) continue;
      for (size_t i = 0; i < unit.params.size(); ++i) {
        if (!in_bucket(unit, unit.params[i])) continue;
        const PlanParam& p = unit.params[i];
        auto it = std::find_if(all.begin(), all.end(), [&](const Matrices& m) {
          return m.dtype == p.dtype && m.master == p.master && m.master_place == p.master_place &&
                 alike(*m.unit, unit);
        });
        if (it == all.end()) it = all.insert(all.end(), {&unit, p.dtype, p.master, p.master_place, {}});
        it->members.emplace_back(static_cast<int>(u), static_cast<int>(i));
      }
    }
  }
  return all;
}

// Returns the last unit inside of unit u, or u itself. Modules are registered before those inside them, so
// the units inside follow. A later unit with fewer levels inside is taken for one of them, which costs one
// slot at most.
int last_inside(const std::vector<PlanUnit>& units, int u) {
  const int others = static_cast<int>(units.size()) - 1;
  if (units[static_cast<size_t>(u)].root) return others - 1;
  int last = u;
  while (last + 1 < others &&
         units[static_cast<size_t>(last) + 1].height < units[static_cast<size_t>(u)].height)
    ++last;
  return last;
}

}  // namespace

std::vector<int> BucketPlan::members() const {
  std::vector<int> all;
  std::set<int> seen;
  // Reverse of model order: the last unit's backward comes first.
  for (size_t i = units.size(); i-- > 0;)
    if (seen.insert(units[i]).second) all.push_back(units[i]);
  return all;
}

std::vector<BucketPlan> plan_buckets(const std::vector<PlanUnit>& units) {
  std::vector<BucketPlan> buckets;
  int buffers = 0;
  for (const Matrices& m : matrices_of(units)) {
    const FullyShardOptions& o = m.unit->options;
    const ShardAxes axes = ShardAxes::of(m.unit->mesh, o);
    std::vector<LayerWiseParam> described;
    for (const auto& [u, i] : m.members) {
      const PlanParam& p = units[static_cast<size_t>(u)].params[static_cast<size_t>(i)];
      described.push_back({layout_param(p.name, p.shape, p.cut, p.row_blocks), p.tied});
    }
    auto layout = LayerWiseLayout::make(
        described, axes.world(),
        {.packing = o.packing, .bucket_elements = o.bucket_elements, .align = m.unit->align});
    for (LayerWiseBucket& b : layout.buckets) {
      BucketPlan bucket;
      GroupPlan& g = bucket.group;
      for (size_t k = 0; k < b.layout.params().size(); ++k) {
        const auto& [u, i] = m.members[static_cast<size_t>(b.first_param) + k];
        bucket.units.push_back(u);
        g.params.push_back(i);
      }
      const std::string& last = units[static_cast<size_t>(bucket.units.back())].name;
      const std::string& first = units[static_cast<size_t>(bucket.units.front())].name;
      g.unit = fmt::format("bucket {} ({}{})", buckets.size(), last, first == last ? "" : " to " + first);
      g.kind = GroupKind::whole;
      g.dtype = m.dtype;
      g.master = m.master;
      g.master_place = m.master_place;
      if (axes.shard_ranks > 1) g.wire_dtype = o.reduce_dtype;
      g.grad_dtype = o.grad_dtype;
      g.axes = axes;
      g.layout = std::make_shared<ShardLayout>(std::move(b.layout));
      g.buffers = buffers_of(g);
      bucket.buffer = buffers;
      bucket.begin = b.begin;
      buckets.push_back(std::move(bucket));
    }
    ++buffers;
  }
  return buckets;
}

BackwardSpan backward_span(const BucketPlan& bucket, const std::vector<PlanUnit>& units) {
  const int others = static_cast<int>(units.size()) - 1;  // but the root
  BackwardSpan span{.begin = others, .end = 0};
  for (const int u : bucket.members()) {
    const bool root = units[static_cast<size_t>(u)].root;
    // A unit's backward begins before those of the units inside it. Of these the last one comes first.
    span.begin = std::min(span.begin, others - 1 - last_inside(units, u));
    span.end = std::max(span.end, root ? others : others - 1 - u);
  }
  return span;
}

}  // namespace sherd
