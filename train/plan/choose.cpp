#include <sherd/train/plan/choose.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/train/plan/dry_rank.h>

namespace sherd {
namespace {

/// Up to so many ranks are all planned.
constexpr int kAllPlanned = 8;

struct RankStep {
  StepTime time;
  int64_t bytes = 0, host_bytes = 0;
};

int64_t memory_of(const ChoiceLimits& limits) {
  return limits.memory_bytes > 0 ? limits.memory_bytes : limits.hardware.memory_bytes;
}

/// The first step finds the order in which units are unsharded ahead; the second is counted. Memory is that of both.
RankStep plan_rank(const ShardedStep& model, const std::vector<MeshDim>& dims, int rank, int world,
                   const Sharding& sharding, const ChoiceLimits& limits) {
  DryDeviceOptions device = limits.device;
  device.keep_within = memory_of(limits);
  DryRank dry(rank, world, device);
  const DeviceMesh mesh(dry.context().world, dims);
  const std::function<void()> step = model(dry.context(), mesh, sharding);
  step();
  const Allocator& allocator = dry.context().device->allocator();
  const int64_t before = allocator.peak_held_bytes();
  dry.begin_step();
  step();
  const RankForecast f = dry.forecast(limits.hardware.ranks_per_host);
  return {play(f.record, limits.hardware), std::max(before, allocator.peak_held_bytes()), f.host_bytes};
}

std::string in_words(const Sharding& s) {
  return fmt::format("{}, layout {}, prefetch {}, variant {}", name_of(s.unit.strategy),
                     name_of(s.unit.layout), s.root.prefetch, s.variant);
}

std::vector<Sharding> choices(const ChoiceLimits& limits) {
  std::vector<Sharding> all;
  for (int variant = 0; variant < limits.variants; ++variant)
    for (const Strategy strategy : limits.strategies)
      for (const LayoutPolicy layout : limits.layouts)
        for (const int prefetch : limits.prefetch) {
          Sharding s = limits.base;
          s.unit.strategy = strategy;
          s.unit.layout = layout;
          s.root.prefetch = prefetch;
          s.variant = variant;
          all.push_back(std::move(s));
          if (strategy != Strategy::optim_grads_params) break;
        }
  return all;
}

}  // namespace

ChosenSharding choose(const ShardedStep& model, const std::vector<MeshDim>& mesh,
                      const ChoiceLimits& limits) {
  const std::vector<Sharding> all = choices(limits);
  if (all.empty())
    throw InvalidArgument(
        "choose: nothing to choose from; give strategies, layouts, prefetch and variants of at least 1");
  int world = 1;
  for (const MeshDim& dim : mesh) world *= dim.size;
  const int64_t memory = memory_of(limits);
  std::optional<ChosenSharding> best, least;
  std::exception_ptr failure;
  int runs = 0;
  for (const Sharding& sharding : all) {
    ChosenSharding c{sharding};
    try {
      const int step = world <= kAllPlanned ? 1 : world - 1;
      for (int rank = 0; rank < world; rank += step) {
        const RankStep r = plan_rank(model, mesh, rank, world, sharding, limits);
        ++runs;
        if (r.time.total > c.time.total) c.time = r.time;
        c.bytes = std::max(c.bytes, r.bytes);
        c.host_bytes = std::max(c.host_bytes, r.host_bytes);
        // Other ranks make it no faster and no smaller.
        if (best && (c.bytes > memory || c.time.total >= best->time.total)) break;
      }
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
      continue;
    }
    if (c.bytes <= memory && (!best || c.time.total < best->time.total)) best = c;
    if (!least || c.bytes < least->bytes) least = c;
  }
  if (best) {
    best->dry_runs = runs;
    return *best;
  }
  if (!least) std::rethrow_exception(failure);
  throw OutOfMemory(fmt::format("no sharding fits in {} bytes of a rank: the nearest takes {}, with {}",
                                memory, least->bytes, in_words(*least)));
}

}  // namespace sherd
