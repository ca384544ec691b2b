#include <sherd/dtensor/packing.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>

namespace sherd {
namespace {

int64_t aligned(int64_t n) { return (n + kPackAlign - 1) / kPackAlign * kPackAlign; }

class Packer {
 public:
  Packer(std::span<const PackItem> items, int world, std::vector<double>& cost)
      : items_(items), cost_(cost), fill_(static_cast<size_t>(world)) {
    packed_.rank.resize(items.size());
    packed_.offset.resize(items.size());
  }

  void lpt() {
    std::vector<size_t> order = backward();
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return items_[a].cost > items_[b].cost; });
    int64_t total = 0;
    for (const PackItem& item : items_) total += item.numel;
    const double most = 1.3 * static_cast<double>(total) / static_cast<double>(fill_.size());
    for (size_t i : order) {
      size_t cheapest = fill_.size(), emptiest = 0;
      for (size_t r = 0; r < fill_.size(); ++r) {
        if (fill_[r] < fill_[emptiest]) emptiest = r;
        if (cheapest < fill_.size() && cost_[r] >= cost_[cheapest]) continue;
        if (static_cast<double>(aligned(fill_[r]) + items_[i].numel) <= most) cheapest = r;
      }
      give(i, cheapest < fill_.size() ? cheapest : emptiest);
    }
  }

  void size_match() {
    std::map<int64_t, std::vector<size_t>, std::greater<>>
        left;  // by elements; the next in backward order last
    for (size_t i = 0; i < items_.size(); ++i) left[items_[i].numel].push_back(i);
    std::vector<bool> given(items_.size());
    for (size_t seed : backward()) {
      if (given[seed]) continue;
      auto size = left.find(items_[seed].numel);
      for (size_t r = 0; r < fill_.size() && size != left.end(); ++r) {
        const size_t i = size->second.back();
        give(i, r);
        given[i] = true;
        size->second.pop_back();
        if (size->second.empty()) size = left.erase(size);
      }
      const int64_t round = fill_.front();
      std::fill(fill_.begin(), fill_.end(), round);
    }
  }

  void ping_pong() {
    std::vector<size_t> order(items_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return items_[a].numel < items_[b].numel; });
    const size_t n = fill_.size();
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t at = k % (2 * n);
      give(order[k], at < n ? at : 2 * n - 1 - at);
    }
  }

  Packed finish() {
    const int64_t divisor = shard_divisor(static_cast<int>(fill_.size()));
    const int64_t fullest = std::max<int64_t>(1, *std::max_element(fill_.begin(), fill_.end()));
    packed_.slice = (fullest + divisor - 1) / divisor * divisor;
    return std::move(packed_);
  }

 private:
  std::vector<size_t> backward() const {
    std::vector<size_t> order(items_.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    return order;
  }

  void give(size_t i, size_t rank) {
    packed_.rank[i] = static_cast<int>(rank);
    packed_.offset[i] = aligned(fill_[rank]);
    fill_[rank] = packed_.offset[i] + items_[i].numel;
    cost_[rank] += items_[i].cost;
  }

  std::span<const PackItem> items_;
  std::vector<double>& cost_;
  std::vector<int64_t> fill_;
  Packed packed_;
};

}  // namespace

int64_t shard_divisor(int world) {
  return std::lcm(kPackAlign, std::lcm<int64_t, int64_t>(world, 128) / world);
}

Packed pack(std::span<const PackItem> items, int world, Packing rule, std::vector<double>& cost) {
  Packer packer(items, world, cost);
  switch (rule) {
    case Packing::lpt:
      packer.lpt();
      break;
    case Packing::size_match:
      packer.size_match();
      break;
    case Packing::ping_pong:
      packer.ping_pong();
      break;
  }
  return packer.finish();
}

}  // namespace sherd
