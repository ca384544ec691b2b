#include <sherd/optim/whole/detail/placement.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>

#include <sherd/base/error.h>
#include <sherd/optim/whole/detail/gram_entries.h>

namespace sherd {
namespace {

/// @param refused matrices for which the forced mode is not possible.
[[noreturn]] void refuse(const PlanDraft& d, const std::vector<std::string>& refused) {
  const std::string what = fmt::format("{} mode {}: {} of {} matrices", d.work.name(),
                                       name_of(d.options.mode), refused.size(), d.matrices.size());
  const std::string names = fmt::format("{}", fmt::join(refused, ", "));
  if (d.options.mode == MatrixMode::local)
    throw InvalidArgument(fmt::format(
        "{} are not stored on one rank: {}; use auto or owner, or a layout that keeps matrices whole "
        "(whole_param)",
        what, names));
  if (d.options.mode == MatrixMode::gather)
    throw InvalidArgument(
        fmt::format("{} have state, which one rank stores, and gather computes a matrix on every rank: {}; "
                    "use auto or owner",
                    what, names));
  throw InvalidArgument(
      fmt::format("{} have fewer rows than columns, are cut by tensor parallelism, or are computed by a "
                  "method without a gram "
                  "form (svd): {}; use owner, or auto with MomentumOptions::allow_inexact",
                  what, names));
}

/// gather: every rank of the team gathers the matrix and computes it. All matrices have this mode then, so that no
/// load has to be balanced.
void place_everywhere(PlanDraft& d, size_t i) {
  PlanEntry& e = d.plan.entries[i];
  e.mode = PlanMode::gather;
  e.owners.resize(static_cast<size_t>(d.plan.team()));
  std::iota(e.owners.begin(), e.owners.end(), 0);
}

/// On one rank, with one copy, a matrix is computed where it is stored, without messages.
void place_where_stored(PlanDraft& d, size_t i, const LogicalMatrix::Cells& holders) {
  PlanEntry& e = d.plan.entries[i];
  e.mode = d.options.mode == MatrixMode::owner ? PlanMode::owner : PlanMode::local;
  e.owners = {holders.count() == 1 ? holders.first : 0};
  d.loads.add(e.owners[0], d.cost[i]);
}

}  // namespace

std::vector<size_t> place_fixed(PlanDraft& d) {
  const MatrixMode mode = d.options.mode;
  std::vector<size_t> pending;
  std::vector<std::string> refused;
  for (size_t i = 0; i < d.matrices.size(); ++i) {
    const LogicalMatrix& m = d.matrices[i];
    const LogicalMatrix::Cells holders = m.cells();
    if (mode == MatrixMode::gather && d.work.state_bytes(m) > 0) {
      refused.push_back(m.label());
    } else if (mode == MatrixMode::gather) {
      place_everywhere(d, i);
    } else if (mode == MatrixMode::gram && !d.work.gram_is_possible(m)) {
      refused.push_back(fmt::format("{} {} x {}", m.label(), m.whole_rows(), m.whole_cols()));
    } else if (mode == MatrixMode::gram || gram_is_faster(d, i)) {
      // Also for a matrix on one rank: a forced gram mode comes before the test for one holder.
      make_gram_entry(d, i);
    } else if (holders.count() <= 1 && d.plan.copies == 1) {
      place_where_stored(d, i, holders);
    } else if (mode == MatrixMode::local) {
      refused.push_back(fmt::format("{} on ranks {} to {}", m.label(), holders.first, holders.last));
    } else {
      d.plan.entries[i].mode = PlanMode::owner;
      pending.push_back(i);
    }
  }
  if (!refused.empty()) refuse(d, refused);
  return pending;
}

}  // namespace sherd
