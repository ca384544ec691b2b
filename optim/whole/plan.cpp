#include <sherd/optim/whole/plan.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <sherd/kernels/device/error.h>
#include <sherd/optim/muon/plan_cost.h>

namespace sherd {
namespace {

// No plan loads its busiest rank less than max(sum of all costs / ranks, largest cost), the lower bound.
// A rank that holds part of a matrix is preferred as its owner while its load stays within 5 % of that bound.
constexpr double kPreferWithin = 1.05;
// Matrices that lie on one rank are moved, too, once the busiest rank is more than 5 % above the lower bound.
constexpr double kRebalanceFrom = 1.05;
// A matrix may lie on thousands of ranks: this many of them are considered as preferred owners.
constexpr int kHoldersAsked = 64;

/// Loads of the ranks and, by load and then rank, who has least and most.
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
  int most() const { return order_.rbegin()->second; }
  double max() const { return order_.rbegin()->first; }
  double min() const { return order_.begin()->first; }

 private:
  std::vector<double> load_;
  std::set<std::pair<double, int>> order_;
};

/// Makes one plan, for a given number of copies (see MuonPlan); make_plan() compares the plans.
class Planner {
 public:
  Planner(std::span<const LogicalMatrix> matrices, int cells, int replicas, int copies, const PlanOptions& o)
      : m_(matrices), o_(o), loads_(cells * copies) {
    plan_.cells = cells;
    plan_.replicas = replicas;
    plan_.copies = copies;
    plan_.entries.resize(m_.size());
    cost_.reserve(m_.size());
    for (auto& m : m_) cost_.push_back(cost_of(m, o));
    sum_ = std::accumulate(cost_.begin(), cost_.end(), 0.0);
    const double largest = cost_.empty() ? 0 : *std::max_element(cost_.begin(), cost_.end());
    // No plan is better than an even share of all costs, nor than the most expensive matrix alone.
    bound_ = std::max(sum_ / plan_.team(), largest);
  }

  MuonPlan make() {
    // LPT: fixed entries load their ranks first; the others follow by descending cost.
    const std::vector<size_t> pending = by_cost(fixed_entries());
    adopt(deal(loads_, pending), pending);
    const bool unbalanced = loads_.max() > kRebalanceFrom * bound_;
    if (o_.mode == MuonMode::automatic && plan_.copies == 1 && unbalanced) deal_again();
    account();
    return std::move(plan_);
  }

 private:
  /// Entries that need no choice; returns the others.
  std::vector<size_t> fixed_entries() {
    std::vector<size_t> pending;
    std::vector<std::string> refused;
    for (size_t i = 0; i < m_.size(); ++i) {
      PlanEntry& e = plan_.entries[i];
      const LogicalMatrix::Cells holders = m_[i].cells();
      const bool single = holders.count() <= 1;
      // gather: every rank of the team gathers every matrix and orthogonalizes it.
      if (o_.mode == MuonMode::gather) {
        e.mode = PlanMode::gather;
        e.owners.resize(static_cast<size_t>(plan_.team()));
        std::iota(e.owners.begin(), e.owners.end(), 0);
        for (int r : e.owners) loads_.add(r, cost_[i]);
      } else if (o_.mode == MuonMode::gram || (o_.allow_inexact && gram_is_faster(i, holders))) {
        if (!gram_is_possible(m_[i])) {
          refused.push_back(fmt::format("{} {} x {}", m_[i].label(), m_[i].whole_rows(), m_[i].whole_cols()));
          continue;
        }
        make_gram(i, holders);
      } else if (single && plan_.copies == 1) {
        // On one rank, with one copy, it is orthogonalized where it is stored, without messages.
        e.mode = o_.mode == MuonMode::owner ? PlanMode::owner : PlanMode::local;
        e.owners = {holders.count() == 1 ? holders.first : 0};
        loads_.add(e.owners[0], cost_[i]);
      } else if (o_.mode == MuonMode::local) {
        refused.push_back(fmt::format("{} on ranks {} to {}", m_[i].label(), holders.first, holders.last));
      } else {
        e.mode = PlanMode::owner;
        pending.push_back(i);
      }
    }
    if (refused.empty()) return pending;
    if (o_.mode == MuonMode::local)
      throw InvalidArgument(fmt::format(
          "Muon mode local: {} of {} matrices do not lie on one rank: {}; use auto or owner, or a "
          "layout that keeps matrices whole (whole_param)",
          refused.size(), m_.size(), fmt::join(refused, ", ")));
    throw InvalidArgument(
        fmt::format("Muon mode gram: {} of {} matrices have fewer rows than columns, are cut by tensor "
                    "parallelism, or want "
                    "svd: {}; use owner, or auto with PlanOptions::allow_inexact",
                    refused.size(), m_.size(), fmt::join(refused, ", ")));
  }

  bool gram_is_possible(const LogicalMatrix& m) const {
    return m.rows >= m.cols && m.tensor_dim < 0 && o_.method == Orthogonalizer::newton_schulz;
  }

  /// By planned time: of the ranks that hold it, if one rank alone would take longer than an even share of
  /// everything (fewer matrices than ranks); otherwise of all ranks together.
  bool gram_is_faster(size_t i, const LogicalMatrix::Cells& holders) const {
    const LogicalMatrix& m = m_[i];
    if (o_.mode != MuonMode::automatic || plan_.copies > 1 || holders.count() < 2 || !gram_is_possible(m))
      return false;
    const double g = holders.count();
    const auto seconds = [&](double flops, double bytes) {
      return flops / o_.costs.flops_per_second + bytes / o_.costs.bytes_per_second;
    };
    const double whole = flops_of(m.rows, m.cols, o_), shared = shared_gram_flops(m, holders.count(), o_);
    // As an owner entry, momentum and result travel, except for the part that the owner holds.
    const double moved = 2.0 * static_cast<double>(m.numel() * o_.payload_bytes) * (1 - 1 / g);
    const double sums = 2.0 * static_cast<double>(gram_sum_bytes(m.cols, holders.count(), o_));
    // A matrix above the even share determines the step's time, so the time of the shared form counts. For
    // others the total work of all ranks counts.
    const bool critical = cost_[i] > sum_ / plan_.team();
    return critical ? seconds(shared / g, sums) < seconds(whole, moved)
                    : seconds(shared, sums * g / 2) < seconds(whole, moved);
  }

  void make_gram(size_t i, const LogicalMatrix::Cells& holders) {
    PlanEntry& e = plan_.entries[i];
    const LogicalMatrix& m = m_[i];
    e.mode = PlanMode::gram;
    int64_t before = 0;
    for (int c = holders.first; c <= holders.last; ++c) {
      // A row that two ranks share goes to the first of them.
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
    for (int r : e.owners) loads_.add(r, gram_cost(i));
  }

  /// Cost per owner, in the unit of cost_of: FLOPs of the shared form over those of the form on one rank.
  double gram_cost(size_t i) const {
    const LogicalMatrix& m = m_[i];
    const int owners = static_cast<int>(plan_.entries[i].owners.size());
    const double whole = flops_of(m.rows, m.cols, o_);
    return whole == 0 ? 0 : cost_[i] * shared_gram_flops(m, owners, o_) / whole / owners;
  }

  /// The rank that holds most of the matrix, and not less than numel / cells of it, if its load stays within
  /// kPreferWithin; else -1.
  int preferred(const Loads& loads, size_t i) const {
    const LogicalMatrix& m = m_[i];
    const LogicalMatrix::Cells holders = m.cells();
    // At most kHoldersAsked holders are examined; different matrices start at different ones.
    const int count = holders.count(), asked = std::min(count, kHoldersAsked);
    const int start = count > asked ? static_cast<int>(i * kHoldersAsked % static_cast<size_t>(count)) : 0;
    int best = -1;
    int64_t most = 0;
    for (int k = 0; k < asked; ++k) {
      const int c = holders.first + (start + k) % count;
      const int64_t held = m.elements_on(c);
      if (held < most || held * plan_.cells < m.numel()) continue;
      for (int t = c * plan_.copies; t < (c + 1) * plan_.copies; ++t) {
        if (loads.of(t) + cost_[i] > kPreferWithin * bound_) continue;
        // More elements first; among equals the lower load.
        if (held > most || loads.of(t) < loads.of(best)) {
          best = t;
          most = held;
        }
      }
    }
    return best;
  }

  struct Assignment {
    Loads loads;
    std::vector<int> owner;  // of each pending matrix
  };

  /// LPT from `loads`: `pending` from the dearest to the cheapest, each to the rank with the least load.
  Assignment deal(Loads loads, const std::vector<size_t>& pending) const {
    const auto run = [&](bool prefer_holders) {
      Assignment a{loads, {}};
      a.owner.reserve(pending.size());
      for (size_t i : pending) {
        int t = prefer_holders ? preferred(a.loads, i) : -1;
        if (t < 0) t = a.loads.least();
        a.loads.add(t, cost_[i]);
        a.owner.push_back(t);
      }
      return a;
    };
    // Preferring holders saves messages. The plain assignment wins where that overloads the busiest rank.
    Assignment near = run(true), plain = run(false);
    return near.loads.max() > std::max(plain.loads.max(), kPreferWithin * bound_) ? plain : near;
  }

  void adopt(Assignment a, const std::vector<size_t>& pending) {
    loads_ = std::move(a.loads);
    for (size_t k = 0; k < pending.size(); ++k) plan_.entries[pending[k]].owners = {a.owner[k]};
  }

  std::vector<size_t> by_cost(std::vector<size_t> list) const {
    std::stable_sort(list.begin(), list.end(), [&](size_t a, size_t b) { return cost_[a] > cost_[b]; });
    return list;
  }

  /// For plans that local work has unbalanced: first only the local matrices of the ranks above
  /// kRebalanceFrom may move, then all local matrices. Keeps a new assignment only if its busiest rank has
  /// less to do.
  void deal_again() {
    const Loads before = loads_;
    for (const bool everything : {false, true}) {
      if (loads_.max() <= kRebalanceFrom * bound_) break;
      // Gram entries stay, since their owners hold the rows. In the first pass local matrices of ranks below
      // the bound stay, too.
      Loads fixed(plan_.team());
      std::vector<size_t> pending;
      for (size_t i = 0; i < m_.size(); ++i) {
        const PlanEntry& e = plan_.entries[i];
        const bool stays = e.mode == PlanMode::gram || (e.mode == PlanMode::local && !everything &&
                                                        before.of(e.owners[0]) <= kRebalanceFrom * bound_);
        if (!stays) pending.push_back(i);
        if (!stays) continue;
        for (int t : e.owners) fixed.add(t, e.mode == PlanMode::gram ? gram_cost(i) : cost_[i]);
      }
      pending = by_cost(std::move(pending));
      Assignment a = deal(std::move(fixed), pending);
      if (a.loads.max() < loads_.max()) adopt(std::move(a), pending);
    }
    for (size_t i = 0; i < m_.size(); ++i) {
      PlanEntry& e = plan_.entries[i];
      if (e.mode == PlanMode::gram) continue;
      const LogicalMatrix::Cells holders = m_[i].cells();
      // The mode follows from the new owner: local only where the matrix is stored on it.
      const bool stayed = holders.count() <= 1 && std::max(0, holders.first) == e.owners[0];
      e.mode = stayed ? PlanMode::local : PlanMode::owner;
    }
  }

  void account() {
    plan_.ranks.resize(static_cast<size_t>(plan_.team()));
    // `planned` counts the work of all ranks, `once` that of each matrix once; their quotient is the
    // redundancy.
    double planned = 0, once = 0;
    for (size_t i = 0; i < m_.size(); ++i) {
      const LogicalMatrix& m = m_[i];
      PlanEntry& e = plan_.entries[i];
      const int owners = static_cast<int>(e.owners.size());
      const double cost = e.mode == PlanMode::gram ? gram_cost(i) : cost_[i];
      const bool gram = e.mode == PlanMode::gram;
      const double flops = gram ? shared_gram_flops(m, owners, o_) / owners : rank_flops(m, o_);
      const int64_t tensor = tensor_bytes(m, o_);
      e.flops = flops * owners;
      for (int t : e.owners) {
        PlanRank& r = plan_.ranks[static_cast<size_t>(t)];
        r.flops += flops;
        r.cost += cost;
        r.bytes_in += tensor;
        r.bytes_out += tensor;
        ++r.matrices;
      }
      // Replicas that keep the same cell repeat the work unless copies share it.
      planned += cost * owners * plan_.replicas / plan_.copies * m.tensor_parts;
      once += whole_cost(m);
      e.bytes = (e.mode == PlanMode::local ? 0 : travel(m, e)) + tensor * owners;
    }
    double busiest = 0;
    for (auto& r : plan_.ranks) {
      busiest = std::max(busiest, r.cost);
      plan_.seconds = std::max(plan_.seconds,
                               r.flops / o_.costs.flops_per_second +
                                   static_cast<double>(r.bytes_in + r.bytes_out) / o_.costs.bytes_per_second);
    }
    plan_.imbalance = bound_ > 0 ? busiest / bound_ : 1;
    plan_.redundancy = once > 0 ? planned / once : 1;
    plan_.fingerprint = digest();
  }

  /// Of orthogonalizing it once, on one rank.
  double whole_cost(LogicalMatrix m) const {
    m.rows = m.whole_rows();
    m.cols = m.whole_cols();
    m.tensor_dim = -1;
    return cost_of(m, o_);
  }

  /// Bytes of one entry, added to the ranks that send and receive them.
  int64_t travel(const LogicalMatrix& m, const PlanEntry& e) {
    const LogicalMatrix::Cells holders = m.cells();
    int64_t total = 0;
    const auto move = [&](int from, int to, int64_t bytes) {
      if (from == to || bytes == 0) return;
      plan_.ranks[static_cast<size_t>(from)].bytes_out += bytes;
      plan_.ranks[static_cast<size_t>(to)].bytes_in += bytes;
      total += bytes;
    };
    // Cells store consecutive elements of the matrix, in order.
    int64_t at = 0;  // first element of the matrix on this cell
    for (int c = holders.first; c <= holders.last; ++c) {
      const int64_t held = m.elements_on(c), bytes = held * o_.payload_bytes;
      if (e.mode == PlanMode::gram) {
        for (size_t k = 0; k < e.owners.size(); ++k) {
          const int64_t both =
              std::min(at + held, e.first_row[k + 1] * m.cols) - std::max(at, e.first_row[k] * m.cols);
          if (both <= 0) continue;
          move(c, e.owners[k], both * o_.payload_bytes);
          move(e.owners[k], c, both * o_.payload_bytes);
        }
        at += held;
        continue;
      }
      for (int t : e.owners) {
        move(c * plan_.copies + t % plan_.copies, t, bytes);
        if (e.mode == PlanMode::gather) continue;
        for (int k = 0; k < plan_.copies; ++k) move(t, c * plan_.copies + k, bytes);
      }
    }
    if (e.mode == PlanMode::gram) {
      // Slices of partial Gram matrices to their owners, and the sums back.
      const int64_t each = gram_sum_bytes(m.cols, static_cast<int64_t>(e.owners.size()), o_);
      for (int t : e.owners) {
        plan_.ranks[static_cast<size_t>(t)].bytes_in += each;
        plan_.ranks[static_cast<size_t>(t)].bytes_out += each;
        total += each;
      }
    }
    return total;
  }

  uint64_t digest() const {
    std::vector<int64_t> words = {plan_.cells,
                                  plan_.replicas,
                                  plan_.copies,
                                  static_cast<int64_t>(m_.size()),
                                  static_cast<int64_t>(o_.method),
                                  static_cast<int64_t>(o_.form),
                                  static_cast<int64_t>(o_.tensor),
                                  o_.steps,
                                  o_.restarts,
                                  o_.payload_bytes};
    for (size_t i = 0; i < m_.size(); ++i) {
      const PlanEntry& e = plan_.entries[i];
      const uint64_t name = XXH64(m_[i].name.data(), m_[i].name.size(), 0);
      words.insert(words.end(), {static_cast<int64_t>(name), m_[i].rows, m_[i].cols, m_[i].place.begin,
                                 m_[i].param, m_[i].tensor_dim, m_[i].tensor_parts,
                                 static_cast<int64_t>(e.mode), static_cast<int64_t>(e.owners.size())});
      words.insert(words.end(), e.owners.begin(), e.owners.end());
      words.insert(words.end(), e.first_row.begin(), e.first_row.end());
    }
    return XXH64(words.data(), words.size() * sizeof(int64_t), 0);
  }

  std::span<const LogicalMatrix> m_;
  PlanOptions o_;
  MuonPlan plan_;
  Loads loads_;
  std::vector<double> cost_;
  double sum_ = 0, bound_ = 0;  // of all costs; the lower bound of the busiest rank's load
};

}  // namespace

const char* name_of(PlanMode m) {
  constexpr const char* kNames[] = {"local", "owner", "gram", "gather"};
  return kNames[static_cast<int>(m)];
}

MuonPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                   const PlanOptions& options) {
  const bool may_spread = options.mode == MuonMode::automatic || options.mode == MuonMode::owner;
  MuonPlan apart = Planner(matrices, cells, replicas, 1, options).make();
  if (replicas == 1 || !may_spread) return apart;
  MuonPlan spread = Planner(matrices, cells, replicas, replicas, options).make();
  return spread.seconds < apart.seconds ? spread : apart;
}

}  // namespace sherd
