#include <sherd/optim/whole/detail/compile_schedule.h>

#include <algorithm>
#include <deque>
#include <utility>

#include <sherd/optim/whole/detail/chunk_lists.h>
#include <sherd/optim/whole/detail/chunks.h>

namespace sherd {
namespace {

// Returns whether the owner stores the matrix alone. With several copies the results travel to the others in
// any case.
bool needs_no_message(const RankView& v, int i) {
  if (v.plan.copies > 1) return false;
  const auto cells = v.matrix(i).cells();
  return cells.count() <= 1 && v.entry(i).owners[0] == std::max(0, cells.first);
}

}  // namespace

MatrixSchedule compile_schedule(std::span<const LogicalMatrix> matrices, const MatrixPlan& plan, int rank,
                                int64_t chunk_elements, bool distributed) {
  const RankView view{matrices, plan, rank};
  std::vector<int> local, gathered;
  // Built from the plan alone, so every rank has the same queues and cuts the same chunks.
  std::vector<std::deque<int>> queues(static_cast<size_t>(plan.team()));  // by owner
  for (int i = 0; i < static_cast<int>(matrices.size()); ++i) {
    const PlanEntry& e = view.entry(i);
    if (e.mode == PlanMode::gather && plan.cells > 1) {
      gathered.push_back(i);
    } else if (needs_no_message(view, i)) {
      if (std::find(e.owners.begin(), e.owners.end(), view.cell_of(rank)) != e.owners.end())
        local.push_back(i);
    } else {
      // A gram entry waits in the queue of its first owner; its other owners are counted by
      // ChunkLists::needs().
      queues[static_cast<size_t>(e.owners[0])].push_back(i);
    }
  }
  const ChunkLists lists(view, chunk_elements, distributed);
  MatrixSchedule s;
  for (auto& list : lists.split(local)) s.local.push_back(local_chunk(view, list));
  for (auto& list : lists.split(gathered)) s.gathered.push_back(gather_chunk(view, list));
  for (auto& list : lists.cut(std::move(queues))) s.exchanged.push_back(exchange_chunk(view, list));
  return s;
}

}  // namespace sherd
