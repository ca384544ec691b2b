#include <sherd/optim/whole/detail/balancing.h>

#include <algorithm>
#include <utility>

#include <sherd/optim/whole/detail/gram_entries.h>

namespace sherd {
namespace {

// A rank that holds part of a matrix is preferred as its owner while its load stays within 5 % of
// PlanDraft::bound.
constexpr double kPreferWithin = 1.05;
// Matrices that are stored on one rank move, too, once the largest load is more than 5 % above
// PlanDraft::bound.
constexpr double kRebalanceFrom = 1.05;
// A matrix may be stored on thousands of ranks: this many of them are considered as preferred owners.
constexpr int kHoldersAsked = 64;

struct Assignment {
  Loads loads;
  std::vector<int> owner;  // of each pending matrix
};

/// Returns the rank that holds most of the matrix, and not less than numel / cells of it, if its load stays
/// within kPreferWithin; else -1.
int preferred(const PlanDraft& d, const Loads& loads, size_t i) {
  const LogicalMatrix& m = d.matrices[i];
  const LogicalMatrix::Cells holders = m.cells();
  // At most kHoldersAsked holders are examined; different matrices start at different ones.
  const int count = holders.count(), asked = std::min(count, kHoldersAsked);
  const int start = count > asked ? static_cast<int>(i * kHoldersAsked % static_cast<size_t>(count)) : 0;
  int best = -1;
  int64_t most = 0;
  for (int k = 0; k < asked; ++k) {
    const int c = holders.first + (start + k) % count;
    const int64_t held = m.elements_on(c);
    // A holder of less than an even share saves little traffic as the owner.
    if (held < most || held * d.plan.cells < m.numel()) continue;
    for (int t = c * d.plan.copies; t < (c + 1) * d.plan.copies; ++t) {
      if (loads.of(t) + d.cost[i] > kPreferWithin * d.bound) continue;
      // More elements first; among equals the lower load.
      if (held > most || loads.of(t) < loads.of(best)) {
        best = t;
        most = held;
      }
    }
  }
  return best;
}

// Returns the list by descending cost. Stable: equal costs keep their order, so the plan is the same on all
// ranks.
std::vector<size_t> by_cost(const PlanDraft& d, std::vector<size_t> list) {
  std::stable_sort(list.begin(), list.end(), [&](size_t a, size_t b) { return d.cost[a] > d.cost[b]; });
  return list;
}

// Assigns `pending`, in descending cost, on top of `loads`: each to the rank with the least load (LPT, Graham
// 1969).
Assignment assign(const PlanDraft& d, const Loads& loads, const std::vector<size_t>& pending) {
  const auto run = [&](bool prefer_holders) {
    Assignment a{loads, {}};
    a.owner.reserve(pending.size());
    for (size_t i : pending) {
      int t = prefer_holders ? preferred(d, a.loads, i) : -1;
      if (t < 0) t = a.loads.least();
      a.loads.add(t, d.cost[i]);
      a.owner.push_back(t);
    }
    return a;
  };
  // Preferring holders saves messages. The plain assignment wins where that overloads the busiest rank.
  Assignment near = run(true), plain = run(false);
  return near.loads.max() > std::max(plain.loads.max(), kPreferWithin * d.bound) ? plain : near;
}

// Makes the assignment the draft's. `pending` is the list that it was made of, in that order.
void adopt(PlanDraft& d, Assignment a, const std::vector<size_t>& pending) {
  d.loads = std::move(a.loads);
  for (size_t k = 0; k < pending.size(); ++k) d.plan.entries[pending[k]].owners = {a.owner[k]};
}

/// Sets the modes after a move: local only where the matrix is stored on its owner.
void renew_modes(PlanDraft& d) {
  for (size_t i = 0; i < d.matrices.size(); ++i) {
    PlanEntry& e = d.plan.entries[i];
    if (e.mode == PlanMode::gram) continue;
    const LogicalMatrix::Cells holders = d.matrices[i].cells();
    const bool stayed = holders.count() <= 1 && std::max(0, holders.first) == e.owners[0];
    e.mode = stayed ? PlanMode::local : PlanMode::owner;
  }
}

}  // namespace

void assign_owners(PlanDraft& d, std::vector<size_t> pending) {
  pending = by_cost(d, std::move(pending));
  adopt(d, assign(d, d.loads, pending), pending);
}

void rebalance(PlanDraft& d) {
  if (d.loads.max() <= kRebalanceFrom * d.bound) return;
  // The first pass detects overloaded ranks by the loads before any move.
  const Loads before = d.loads;
  for (const bool everything : {false, true}) {
    if (d.loads.max() <= kRebalanceFrom * d.bound) break;
    // Gram entries stay, since their owners hold the rows. In the first pass local matrices of ranks that are
    // not overloaded stay, too.
    Loads fixed(d.plan.team());
    std::vector<size_t> pending;
    for (size_t i = 0; i < d.matrices.size(); ++i) {
      const PlanEntry& e = d.plan.entries[i];
      const bool gram = e.mode == PlanMode::gram;
      const bool stays = gram || (e.mode == PlanMode::local && !everything &&
                                  before.of(e.owners[0]) <= kRebalanceFrom * d.bound);
      if (!stays) {
        pending.push_back(i);
        continue;
      }
      for (int t : e.owners) fixed.add(t, gram ? gram_cost(d, i) : d.cost[i]);
    }
    pending = by_cost(d, std::move(pending));
    Assignment a = assign(d, fixed, pending);
    if (a.loads.max() < d.loads.max()) adopt(d, std::move(a), pending);
  }
  renew_modes(d);
}

}  // namespace sherd
