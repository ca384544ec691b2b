// Assignment of whole parameters to ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd {

/// The rule by which one bucket's parameters are dealt to ranks. A rank's parameters lie one behind the other
/// in its slice, in the order in which it got them, each at a multiple of 64 elements.
enum class Packing {
  /// Longest processing time first: by descending cost (equal ones in backward order), each to the rank with
  /// the least accumulated cost among those that it fills to at most 1.3 times the mean, else to the one with
  /// the smallest fill; of equals to the lowest rank.
  lpt,
  /// Rounds: the first parameter left in backward order goes to rank 0; ranks 1, 2, ... get those that are as
  /// large, and when these run out the next smaller ones (largest first). Every rank's place in a round is as
  /// large as rank 0's; what is not filled is padding.
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

/// Where a parameter may start in a slice: multiples of this many elements.
inline constexpr int64_t kPackAlign = 64;

/// What the slice of a bucket of whole parameters is a multiple of: lcm(64, lcm(world, 128) / world).
int64_t shard_divisor(int world);

/// Deals `items`, given in model order, to the ranks of one bucket. `cost` has one entry for each rank, the
/// cost that it carries from earlier buckets, and is increased by that of its items. The slice is at least
/// one divisor long.
/// @pre numel and cost are not negative, world >= 1, cost.size() == world.
Packed pack(std::span<const PackItem> items, int world, Packing rule, std::vector<double>& cost);

}  // namespace sherd
