#include <sherd/optim/whole/detail/chunk_lists.h>

#include <utility>

namespace sherd {

std::vector<std::vector<int>> ChunkLists::split(std::vector<int> list) const {
  view_.sort_by_shape(list);
  std::vector<std::vector<int>> parts;
  int64_t used = 0;
  for (int i : list) {
    if (parts.empty() || used + size_of(i) > limit_) {
      parts.emplace_back();
      used = 0;
    }
    parts.back().push_back(i);
    used += size_of(i);
  }
  return parts;
}

std::vector<std::vector<int>> ChunkLists::cut(std::vector<std::deque<int>> queues) const {
  // Large shapes first: a chunk's matrices then have few different shapes, and so few batches.
  for (auto& q : queues) view_.sort_by_shape(q);
  std::vector<std::vector<int>> chunks;
  std::vector<int64_t> send(queues.size()), recv(queues.size());
  while (std::any_of(queues.begin(), queues.end(), [](auto& q) { return !q.empty(); })) {
    std::vector<int> chunk;
    std::fill(send.begin(), send.end(), 0);
    std::fill(recv.begin(), recv.end(), 0);
    std::vector<bool> closed(queues.size(), false);
    for (bool grew = true; grew;) {
      grew = false;
      for (size_t owner = 0; owner < queues.size(); ++owner) {
        if (closed[owner] || queues[owner].empty()) continue;
        const int i = queues[owner].front();
        // Most chunks end by their owners' matrices: the many ranks that hold the next one are not asked then.
        if (!chunk.empty() && !owners_have_room(i, recv)) {
          closed[owner] = true;
          continue;
        }
        const auto extra = needs(i);
        const bool fits = std::all_of(extra.begin(), extra.end(), [&](const Need& n) {
          const auto r = static_cast<size_t>(n.rank);
          return send[r] + n.send <= limit_ && (recv[r] + n.recv) * view_.plan.copies <= limit_;
        });
        // A matrix that exceeds the limit alone still makes a chunk of its own.
        if (!fits && !chunk.empty()) {
          closed[owner] = true;
          continue;
        }
        for (auto& n : extra) {
          send[static_cast<size_t>(n.rank)] += n.send;
          recv[static_cast<size_t>(n.rank)] += n.recv;
        }
        chunk.push_back(i);
        queues[owner].pop_front();
        grew = true;
      }
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

bool ChunkLists::owners_have_room(int i, const std::vector<int64_t>& recv) const {
  const PlanEntry& e = view_.entry(i);
  for (size_t k = 0; k < e.owners.size(); ++k) {
    const int64_t more = view_.owned(i, k).size() + gram_elements(i);
    if ((recv[static_cast<size_t>(e.owners[k])] + more) * view_.plan.copies > limit_) return false;
  }
  return true;
}

// Returns the elements that matrix i adds to the messages of each rank. A rank may appear twice, as a holder
// and as an owner.
std::vector<ChunkLists::Need> ChunkLists::needs(int i) const {
  const LogicalMatrix& m = view_.matrix(i);
  const auto cells = m.cells();
  const int copies = view_.plan.copies;
  std::vector<Need> all;
  for (int c = cells.first; c <= cells.last; ++c)
    for (int k = 0; k < copies; ++k) all.push_back({c * copies + k, m.elements_on(c), 0});
  const PlanEntry& e = view_.entry(i);
  for (size_t k = 0; k < e.owners.size(); ++k)
    all.push_back({e.owners[k], 0, view_.owned(i, k).size() + gram_elements(i)});
  return all;
}

int64_t ChunkLists::gram_elements(int i) const {
  const LogicalMatrix& m = view_.matrix(i);
  if (view_.entry(i).mode == PlanMode::gram) return m.cols * m.cols;
  if (!distributed_ || m.tensor_dim < 0) return 0;
  return m.tensor_dim == 0 ? m.cols * m.cols : m.rows * m.rows;
}

}  // namespace sherd
