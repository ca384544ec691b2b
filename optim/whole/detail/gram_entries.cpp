#include <sherd/optim/whole/detail/gram_entries.h>

namespace sherd {

bool gram_is_faster(const PlanDraft& d, size_t i) {
  const LogicalMatrix& m = d.matrices[i];
  const MomentumOptions& o = d.options;
  const int holders = m.cells().count();
  if (!o.allow_inexact || o.mode != MatrixMode::automatic || d.plan.copies > 1 || holders < 2 ||
      !d.work.gram_is_possible(m))
    return false;
  const double g = holders;
  const auto seconds = [&](double flops, double bytes) {
    return flops / o.costs.flops_per_second + bytes / o.costs.bytes_per_second;
  };
  const double whole = d.work.flops(m), shared = d.work.gram_flops(m, holders);
  // In an owner entry, input and result travel, except for the owner's own part.
  const double moved = 2.0 * static_cast<double>(m.numel() * size_of(o.payload)) * (1 - 1 / g);
  const double sums = 2.0 * static_cast<double>(d.work.gram_bytes(m, holders));
  // A matrix above the even share determines the step's time (fewer matrices than ranks), so the time of the
  // shared form counts. For others the total work of all ranks counts.
  const bool critical = d.cost[i] > d.sum / d.plan.team();
  return critical ? seconds(shared / g, sums) < seconds(whole, moved)
                  : seconds(shared, sums * g / 2) < seconds(whole, moved);
}

void make_gram_entry(PlanDraft& d, size_t i) {
  PlanEntry& e = d.plan.entries[i];
  const LogicalMatrix& m = d.matrices[i];
  const LogicalMatrix::Cells holders = m.cells();
  e.mode = PlanMode::gram;
  int64_t before = 0;
  for (int c = holders.first; c <= holders.last; ++c) {
    // ceil(before / cols). A row that two ranks share belongs to the first of them.
    const int64_t row = m.cols == 0 ? 0 : (before + m.cols - 1) / m.cols;
    before += m.elements_on(c);
    const int64_t end = m.cols == 0 ? 0 : (before + m.cols - 1) / m.cols;
    // A rank in which no row starts owns none, unless no other holder does.
    if (end == row && !(e.owners.empty() && c == holders.last)) continue;
    e.owners.push_back(c);
    e.first_row.push_back(row);
  }
  if (e.owners.empty()) {
    e.owners = {0};
    e.first_row = {0};
  }
  e.first_row.push_back(m.rows);
  for (int r : e.owners) d.loads.add(r, gram_cost(d, i));
}

double gram_cost(const PlanDraft& d, size_t i) {
  const LogicalMatrix& m = d.matrices[i];
  const int owners = static_cast<int>(d.plan.entries[i].owners.size());
  // FLOPs of the shared form over those of the form on one rank.
  const double whole = d.work.flops(m);
  return whole == 0 ? 0 : d.cost[i] * d.work.gram_flops(m, owners) / whole / owners;
}

}  // namespace sherd
