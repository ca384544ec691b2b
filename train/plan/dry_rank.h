// One rank of a dry run: a program's own code, counted in place of run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/dry/dry_world.h>
#include <sherd/comm/launcher.h>

namespace sherd {

/// Collectives of one kind and link in a step.
struct PlannedCollective {
  std::string name;  // as in CommCounts
  std::string link;  // "host": all ranks of the group are on one host; "network"
  int64_t calls = 0, bytes = 0;
  bool operator==(const PlannedCollective&) const = default;
};

/// Operations of one rank in a step.
struct RankForecast {
  int rank = 0;
  int64_t peak_bytes = 0;  // as Allocator::peak_bytes() of a run
  int64_t host_bytes = 0;  // peak of Device::host_tier()
  /// Live bytes at that time by name of MemoryClass, and "slack": the part of peak_held_bytes() above peak_bytes().
  std::map<std::string, int64_t> by_class;
  std::vector<PlannedCollective> collectives;  // by name, then link
  double newton_schulz_flops = 0;
  DryRecord record;  // of the step
};

/// Device and world of a dry run. A program builds its model on context() and runs some steps, the last of which
/// is counted: the first ones find the order in which units are gathered ahead.
class DryRank {
 public:
  /// @throws as make_dry_world().
  DryRank(int rank, int world, const DryDeviceOptions& options);

  RankContext& context() { return context_; }
  /// Begins the step that is counted.
  void begin_step();
  /// Returns what was counted since. @param ranks_per_host ranks r with equal r / ranks_per_host share a host
  [[nodiscard]] RankForecast forecast(int ranks_per_host) const;

 private:
  std::shared_ptr<DryDevice> device_;
  RankContext context_;
};

}  // namespace sherd
