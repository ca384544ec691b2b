#include <sherd/train/plan/dry_rank.h>

#include <algorithm>

namespace sherd {
namespace {

bool on_one_host(const std::vector<int>& ranks, int ranks_per_host) {
  const int host = ranks.front() / ranks_per_host;
  return std::ranges::all_of(ranks, [&](int r) { return r / ranks_per_host == host; });
}

std::vector<PlannedCollective> collectives_of(const DryRecord& record, int ranks_per_host) {
  std::map<std::pair<std::string, std::string>, PlannedCollective> all;
  std::map<const std::vector<int>*, bool> local;
  for (const DryExchange& e : record.exchanges) {
    const auto [at, fresh] = local.try_emplace(e.ranks.get());
    if (fresh) at->second = on_one_host(*e.ranks, ranks_per_host);
    const char* const link = at->second ? "host" : "network";
    PlannedCollective& c = all.try_emplace({e.op, link}, PlannedCollective{e.op, link}).first->second;
    ++c.calls;
    c.bytes += e.bytes;
  }
  std::vector<PlannedCollective> list;
  for (auto& [key, c] : all) list.push_back(std::move(c));
  return list;
}

}  // namespace

DryRank::DryRank(int rank, int world, const DryDeviceOptions& options)
    : device_(make_dry_device(options)),
      context_{device_, make_dry_world(device_, rank, world, options.communicator_bytes)} {}

void DryRank::begin_step() {
  device_->allocator().reset_peak();
  device_->host_tier().reset_peak();
  device_->clear();
}

RankForecast DryRank::forecast(int ranks_per_host) const {
  const Allocator& allocator = device_->allocator();
  RankForecast f{.rank = context_.world->rank(),
                 .peak_bytes = allocator.peak_bytes(),
                 .host_bytes = device_->host_tier().peak_bytes()};
  for (const MemoryClass kind : kMemoryClasses)
    f.by_class[std::string(name_of(kind))] = allocator.bytes_at_peak(kind);
  f.by_class["slack"] = allocator.peak_held_bytes() - f.peak_bytes;
  f.record = device_->record();
  f.collectives = collectives_of(f.record, ranks_per_host);
  for (const DryEntry& e : f.record.entries)
    if (e.what.kind == WorkKind::orthogonalize)
      f.newton_schulz_flops += static_cast<double>(e.work.times) * e.work.flops;
  return f;
}

}  // namespace sherd
