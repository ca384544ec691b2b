#include <sherd/optim/whole/detail/gram_exchange.h>

#include <algorithm>

namespace sherd {
namespace {

/// Returns part k of `size` elements in `parts`.
Slice part(int64_t size, size_t parts, size_t k) {
  const auto p = static_cast<int64_t>(parts), i = static_cast<int64_t>(k);
  // Sizes differ by one element at most.
  return {size * i / p, size * (i + 1) / p};
}

/// A Gram matrix of this rank.
struct Held {
  const PlanEntry* entry;
  size_t me;         // index among the owners
  int64_t at, size;  // place and number of its elements
  int64_t sum;       // place of the sum of this rank's slice
  Slice slice(size_t owner) const { return part(size, entry->owners.size(), owner); }
};

}  // namespace

GramExchange gram_exchange(const RankView& v, const MatrixChunk& chunk) {
  GramExchange g;
  std::vector<Held> held;
  for (int i : chunk.matrices) g.any = g.any || v.entry(i).mode == PlanMode::gram;
  for (auto& b : chunk.batches) {
    if (!b.gram()) continue;
    const Held h{&v.entry(b.matrices[0]), static_cast<size_t>(b.gram_index), g.elements, b.cols * b.cols,
                 g.sums_total};
    const int64_t mine = h.slice(h.me).size();
    g.elements += h.size;
    g.sums.push_back({h.sum, mine, {}});
    g.sums_total += mine;
    held.push_back(h);
  }
  for (int peer = 0; peer < v.plan.team(); ++peer) {
    const int64_t before[] = {g.partial.send_total, g.partial.recv_total, g.whole.send_total,
                              g.whole.recv_total};
    for (size_t k = 0; k < held.size(); ++k) {
      const Held& h = held[k];
      const auto it = std::find(h.entry->owners.begin(), h.entry->owners.end(), peer);
      if (it == h.entry->owners.end()) continue;
      const Slice theirs = h.slice(static_cast<size_t>(it - h.entry->owners.begin()));
      const int64_t n = h.slice(h.me).size(), m = theirs.size();
      g.pack.push_back({g.partial.send_total, h.at + theirs.begin, m});
      g.partial.send_total += m;
      // In the order of ranks, which is the owners' order: every owner adds in one order.
      g.sums[k].from.push_back(g.partial.recv_total);
      g.partial.recv_total += n;
      g.spread.push_back({g.whole.send_total, h.sum, n});
      g.whole.send_total += n;
      g.unpack.push_back({h.at + theirs.begin, g.whole.recv_total, m});
      g.whole.recv_total += m;
    }
    g.partial.send.push_back(g.partial.send_total - before[0]);
    g.partial.recv.push_back(g.partial.recv_total - before[1]);
    g.whole.send.push_back(g.whole.send_total - before[2]);
    g.whole.recv.push_back(g.whole.recv_total - before[3]);
  }
  return g;
}

}  // namespace sherd
