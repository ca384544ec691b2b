#include <sherd/optim/whole/detail/accounting.h>

#include <xxhash.h>

#include <algorithm>

#include <sherd/optim/whole/detail/gram_entries.h>

namespace sherd {
namespace {

/// Counts bytes of messages, by rank and together.
class Traffic {
 public:
  explicit Traffic(std::vector<PlanRank>& ranks) : ranks_(ranks) {}
  void add(int from, int to, int64_t bytes) {
    if (from == to || bytes == 0) return;
    ranks_[static_cast<size_t>(from)].bytes_out += bytes;
    ranks_[static_cast<size_t>(to)].bytes_in += bytes;
    total_ += bytes;
  }
  /// Bytes that a rank receives and sends, peers not counted. The total counts what is received.
  void add_one(int rank, int64_t in, int64_t out) {
    ranks_[static_cast<size_t>(rank)].bytes_in += in;
    ranks_[static_cast<size_t>(rank)].bytes_out += out;
    total_ += in;
  }
  int64_t total() const { return total_; }

 private:
  std::vector<PlanRank>& ranks_;
  int64_t total_ = 0;
};

/// Rows to their owners and back, slices of partial Gram matrices to their owners, and the sums back.
void count_gram(const PlanDraft& d, const LogicalMatrix& m, const PlanEntry& e, Traffic& traffic) {
  const LogicalMatrix::Cells holders = m.cells();
  // Cells store consecutive elements of the matrix, in order.
  int64_t at = 0;  // first element of the matrix on this cell
  for (int c = holders.first; c <= holders.last; ++c) {
    const int64_t held = m.elements_on(c);
    for (size_t k = 0; k < e.owners.size(); ++k) {
      const int64_t both =
          std::min(at + held, e.first_row[k + 1] * m.cols) - std::max(at, e.first_row[k] * m.cols);
      if (both <= 0) continue;
      traffic.add(c, e.owners[k], both * size_of(d.options.payload));
      traffic.add(e.owners[k], c, both * size_of(d.options.payload));
    }
    at += held;
  }
  const int64_t each = d.work.gram_bytes(m, static_cast<int>(e.owners.size()));
  for (int t : e.owners) traffic.add_one(t, each, each);
}

/// Pieces to every rank of the team. Each copy of a cell sends to one rank of every other cell, the one with its own
/// index among the copies.
void count_gather(const PlanDraft& d, const LogicalMatrix& m, const PlanEntry& e, Traffic& traffic) {
  const LogicalMatrix::Cells holders = m.cells();
  int64_t all = 0;
  for (int c = holders.first; c <= holders.last; ++c) {
    const int64_t bytes = m.elements_on(c) * size_of(d.options.payload);
    for (int k = 0; k < d.plan.copies; ++k)
      traffic.add_one(c * d.plan.copies + k, -bytes, bytes * (d.plan.cells - 1));
    all += bytes;
  }
  for (int t : e.owners) traffic.add_one(t, all, 0);
}

/// Pieces to every owner, and results back to every copy.
void count_whole(const PlanDraft& d, const LogicalMatrix& m, const PlanEntry& e, Traffic& traffic) {
  const LogicalMatrix::Cells holders = m.cells();
  const int copies = d.plan.copies;
  for (int c = holders.first; c <= holders.last; ++c) {
    const int64_t bytes = m.elements_on(c) * size_of(d.options.payload);
    for (int t : e.owners) {
      // The copy with the owner's index sends, as RankView::is_source().
      traffic.add(c * copies + t % copies, t, bytes);
      for (int k = 0; k < copies; ++k) traffic.add(t, c * copies + k, bytes);
    }
  }
}

/// Returns the bytes of one entry, added to the ranks that send and receive them.
int64_t count_traffic(PlanDraft& d, size_t i) {
  const PlanEntry& e = d.plan.entries[i];
  Traffic traffic(d.plan.ranks);
  if (e.mode == PlanMode::gram) {
    count_gram(d, d.matrices[i], e, traffic);
  } else if (e.mode == PlanMode::gather) {
    count_gather(d, d.matrices[i], e, traffic);
  } else if (e.mode == PlanMode::owner) {
    count_whole(d, d.matrices[i], e, traffic);
  }
  return traffic.total();
}

/// Returns the cost of computing it once, on one rank without tensor parallelism.
double cost_of_whole(const PlanDraft& d, LogicalMatrix m) {
  m.rows = m.whole_rows();
  m.cols = m.whole_cols();
  m.tensor_dim = -1;
  return d.work.cost(m);
}

// Returns a digest of all that the ranks' schedules depend on. Words in host order: all processes of a job
// run one build.
uint64_t fingerprint_of(const PlanDraft& d) {
  const MatrixPlan& plan = d.plan;
  std::vector<int64_t> words = {plan.cells, plan.replicas, plan.copies,
                                static_cast<int64_t>(d.matrices.size())};
  const std::vector<int64_t> options = d.work.options_as_words();
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(size_of(d.options.payload));
  for (size_t i = 0; i < d.matrices.size(); ++i) {
    const LogicalMatrix& m = d.matrices[i];
    const PlanEntry& e = plan.entries[i];
    const uint64_t name = XXH64(m.name.data(), m.name.size(), 0);
    words.insert(words.end(),
                 {static_cast<int64_t>(name), m.rows, m.cols, m.place.begin, m.param, m.tensor_dim,
                  m.tensor_parts, static_cast<int64_t>(e.mode), static_cast<int64_t>(e.owners.size())});
    words.insert(words.end(), e.owners.begin(), e.owners.end());
    words.insert(words.end(), e.first_row.begin(), e.first_row.end());
    if (const int64_t state = d.work.state_bytes(m); state > 0) words.push_back(state);
  }
  return XXH64(words.data(), words.size() * sizeof(int64_t), 0);
}

}  // namespace

void account(PlanDraft& d) {
  MatrixPlan& plan = d.plan;
  plan.ranks.resize(static_cast<size_t>(plan.team()));
  // `planned` counts the work of all ranks, `once` that of each matrix once; their quotient is the
  // redundancy.
  double planned = 0, once = 0;
  for (size_t i = 0; i < d.matrices.size(); ++i) {
    const LogicalMatrix& m = d.matrices[i];
    PlanEntry& e = plan.entries[i];
    const int owners = static_cast<int>(e.owners.size());
    const bool gram = e.mode == PlanMode::gram;
    const double cost = gram ? gram_cost(d, i) : d.cost[i];
    // Per owner: a gram entry's owners share the work, other owners repeat it.
    const double flops = gram ? d.work.gram_flops(m, owners) / owners : d.work.flops(m);
    const int64_t tensor = d.work.tensor_bytes(m);
    e.flops = flops * owners;
    for (int t : e.owners) {
      PlanRank& r = plan.ranks[static_cast<size_t>(t)];
      r.flops += flops;
      r.cost += cost;
      r.state_bytes += d.work.state_bytes(m);
      r.bytes_in += tensor;
      r.bytes_out += tensor;
      ++r.matrices;
    }
    // Replicas that keep the same cell repeat the work unless copies share it.
    planned += cost * owners * plan.replicas / plan.copies * m.tensor_parts;
    once += cost_of_whole(d, m);
    e.bytes = count_traffic(d, i) + tensor * owners;
  }
  double busiest = 0;
  for (auto& r : plan.ranks) {
    busiest = std::max(busiest, r.cost);
    plan.seconds = std::max(
        plan.seconds, r.flops / d.options.costs.flops_per_second +
                          static_cast<double>(r.bytes_in + r.bytes_out) / d.options.costs.bytes_per_second);
  }
  plan.imbalance = d.bound > 0 ? busiest / d.bound : 1;
  plan.redundancy = once > 0 ? planned / once : 1;
  plan.fingerprint = fingerprint_of(d);
}

}  // namespace sherd
