// Loads of ranks, ordered.
#pragma once

#include <set>
#include <utility>
#include <vector>

namespace sherd {

/// Loads of the ranks, and the ranks with the least and the most, ties by rank.
class Loads {
 public:
  explicit Loads(int ranks) : load_(static_cast<size_t>(ranks), 0) {
    for (int r = 0; r < ranks; ++r) order_.insert({0.0, r});
  }
  void add(int rank, double cost) {
    double& l = load_[static_cast<size_t>(rank)];
    order_.erase({l, rank});
    l += cost;
    order_.insert({l, rank});
  }
  double of(int rank) const { return load_[static_cast<size_t>(rank)]; }
  int least() const { return order_.begin()->second; }
  double max() const { return order_.rbegin()->first; }

 private:
  std::vector<double> load_;
  std::set<std::pair<double, int>> order_;
};

}  // namespace sherd
