// Assignment of whole parameters to ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd {

/// Rule that assigns one bucket's parameters to ranks. A rank's parameters are stored one after the other in
/// its slice, in the order of assignment, each at a multiple of 64 elements.
enum class Packing {
  /// Longest processing time first: by descending cost (equal ones in backward order). Each goes to the rank
  /// with the least accumulated cost among those that it fills to at most 1.3 times the mean, else to the one
  /// with the smallest fill; of equals to the lowest rank.
  lpt,
  /// Rounds: the first remaining parameter in backward order goes to rank 0. Ranks 1, 2, ... get parameters
  /// of the same size, and when these run out the next smaller ones (largest first). Every rank's place in a
  /// round is as large as rank 0's; the unfilled rest is padding.
  size_match,
  /// Ascending by elements (equal ones in model order), to ranks 0 .. n-1, then n-1 .. 0, and so on.
  ping_pong,
};

struct PackItem {
  int64_t numel = 0;
  double cost = 0;
};

struct Packed {
  int64_t slice = 0;            // of every rank: the fullest one, rounded up to shard_divisor(world)
  std::vector<int> rank;        // per item
  std::vector<int64_t> offset;  // per item, in its rank's slice
};

/// Alignment of parameters in a slice, in elements.
inline constexpr int64_t kPackAlign = 64;

/// Returns the divisor of a slice of whole parameters: lcm(64, lcm(world, 128) / world).
int64_t shard_divisor(int world);

/// Assigns `items`, given in model order, to the ranks of one bucket. `cost` has one entry for each rank,
/// carried from earlier buckets, and is increased by the cost of its items. The slice is at least one divisor
/// long.
/// @pre numel and cost are not negative, world >= 1, cost.size() == world.
[[nodiscard]] Packed pack(std::span<const PackItem> items, int world, Packing rule,
                          std::vector<double>& cost);

}  // namespace sherd
