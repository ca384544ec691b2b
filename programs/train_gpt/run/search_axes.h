// Axes of a search: settings, and the values that a run can have of each.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// What a search may not change.
struct Constraints {
  /// Settings that keep the base's value, of kSearched.
  std::set<std::string> fixed = {};
  /// Keep the bits of the base's losses and weights.
  bool keep_bits = false;
  /// Leave out what is offloaded to a folder that the base does not name.
  bool names_no_folder = false;
  int64_t max_tp = 0;        // 0: the ranks of a host
  int64_t memory_bytes = 0;  // of a rank; 0: the hardware's
};

/// The settings that a search sets, in the order of the axes.
extern const std::vector<std::string> kSearched;

/// Numbers of axes: of a candidate; of its arrangement, arrangement and layout, and those with the traffic, which come first.
inline constexpr size_t kAxes = 16, kArrangement = 8, kLayout = 9, kTraffic = 12;

using Configs = std::vector<TrainConfig>;

/// Returns the choices of the axis for a run whose axes before it are set; the first is the run itself. They may break rules.
Configs choices(size_t axis, const TrainConfig& config, const Constraints& constraints,
                int64_t ranks_per_host);

/// Returns whether ranks, heads and sequences can be divided so. Cheaper than the rules, which follow.
bool divides(const TrainConfig& config);

/// Returns the ranks among which a unit without experts is sharded.
int64_t shards_of(const TrainConfig& config);

/// Returns whether ranks add their own microbatches before they add those of others: no_shard and optim (fsdp/strategy.h).
bool adds_on_ranks(const TrainConfig& config);

}  // namespace train_gpt
