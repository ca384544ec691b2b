#include <sherd/optim/whole/detail/schedule.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <tuple>

namespace sherd {
namespace {

/// Rows of a matrix as elements [begin, end) of it.
struct Slice {
  int64_t begin = 0, end = 0;
};

class Compiler {
 public:
  Compiler(std::span<const LogicalMatrix> m, const MuonPlan& plan, int rank, int64_t chunk_elements,
           bool distributed)
      : m_(m),
        plan_(plan),
        me_(rank),
        limit_(std::max<int64_t>(1, chunk_elements)),
        distributed_(distributed) {}

  MuonSchedule compile() {
    std::vector<int> local, gathered;
    std::vector<std::deque<int>> queues(static_cast<size_t>(plan_.team()));
    for (int i = 0; i < static_cast<int>(m_.size()); ++i) {
      const PlanEntry& e = entry(i);
      if (e.mode == PlanMode::gather && plan_.cells > 1) {
        gathered.push_back(i);
      } else if (needs_no_message(i)) {
        if (std::find(e.owners.begin(), e.owners.end(), me_ / plan_.copies) != e.owners.end())
          local.push_back(i);
      } else {
        queues[static_cast<size_t>(e.owners[0])].push_back(i);
      }
    }
    MuonSchedule s;
    for (auto& list : split(local)) s.local.push_back(local_chunk(list));
    for (auto& list : split(gathered)) s.gathered.push_back(gather_chunk(list));
    for (auto& q : queues) sort_by_shape(q);
    for (auto& list : cut_into_chunks(std::move(queues))) s.exchanged.push_back(exchange_chunk(list));
    return s;
  }

 private:
  const LogicalMatrix& matrix(int i) const { return m_[static_cast<size_t>(i)]; }
  const PlanEntry& entry(int i) const { return plan_.entries[static_cast<size_t>(i)]; }
  int cell_of(int rank) const { return rank / plan_.copies; }
  /// The rank that sends its piece to `to` when both hold copies.
  bool is_source(int rank, int to) const { return rank % plan_.copies == to % plan_.copies; }

  bool needs_no_message(int i) const {
    if (plan_.copies > 1) return false;
    const auto cells = matrix(i).cells();
    return cells.count() <= 1 && entry(i).owners[0] == std::max(0, cells.first);
  }

  static auto shape_key(const LogicalMatrix& m) {
    return std::tuple(m.rows, m.cols, m.tensor_dim, m.tensor_parts);
  }
  template <class List>
  void sort_by_shape(List& list) const {
    std::stable_sort(list.begin(), list.end(),
                     [&](int a, int b) { return shape_key(matrix(a)) > shape_key(matrix(b)); });
  }

  /// Lists of at most limit_ elements (or one matrix), equal shapes together.
  std::vector<std::vector<int>> split(std::vector<int> list) const {
    sort_by_shape(list);
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

  /// Elements of the Gram matrix that is summed for it, if any.
  int64_t gram_elements(int i) const {
    const LogicalMatrix& m = matrix(i);
    if (entry(i).mode == PlanMode::gram) return m.cols * m.cols;
    if (!distributed_ || m.tensor_dim < 0) return 0;
    return m.tensor_dim == 0 ? m.cols * m.cols : m.rows * m.rows;
  }
  int64_t size_of(int i) const { return matrix(i).numel() + gram_elements(i); }

  // Elements of messages that an entry adds on a rank: sent and received on the way in; the way out mirrors
  // them, times the copies.
  struct Need {
    int rank;
    int64_t send = 0, recv = 0;
  };
  std::vector<Need> needs(int i) const {
    const LogicalMatrix& m = matrix(i);
    const auto cells = m.cells();
    std::vector<Need> all;
    for (int c = cells.first; c <= cells.last; ++c)
      for (int k = 0; k < plan_.copies; ++k) all.push_back({c * plan_.copies + k, m.elements_on(c), 0});
    const PlanEntry& e = entry(i);
    for (size_t k = 0; k < e.owners.size(); ++k)
      all.push_back({e.owners[k], 0, slice(i, k).end - slice(i, k).begin + gram_elements(i)});
    return all;
  }

  std::vector<std::vector<int>> cut_into_chunks(std::vector<std::deque<int>> queues) const {
    std::vector<std::vector<int>> chunks;
    std::vector<int64_t> send(queues.size()), recv(queues.size());
    while (std::any_of(queues.begin(), queues.end(), [](auto& q) { return !q.empty(); })) {
      std::vector<int> chunk;
      std::fill(send.begin(), send.end(), 0);
      std::fill(recv.begin(), recv.end(), 0);
      std::vector<bool> closed(queues.size(), false);
      // One matrix of each owner in turn, so that all owners have work in every chunk.
      for (bool grew = true; grew;) {
        grew = false;
        for (size_t owner = 0; owner < queues.size(); ++owner) {
          if (closed[owner] || queues[owner].empty()) continue;
          const int i = queues[owner].front();
          const auto extra = needs(i);
          const bool fits = std::all_of(extra.begin(), extra.end(), [&](const Need& n) {
            const auto r = static_cast<size_t>(n.rank);
            return send[r] + n.send <= limit_ && (recv[r] + n.recv) * plan_.copies <= limit_;
          });
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

  /// What owner number k of an entry holds of the matrix.
  Slice slice(int i, size_t k) const {
    const PlanEntry& e = entry(i);
    if (e.mode != PlanMode::gram) return {0, matrix(i).numel()};
    return {e.first_row[k] * matrix(i).cols, e.first_row[k + 1] * matrix(i).cols};
  }

  /// Calls f(place in the cell's piece, place in the matrix, count) for what `cell` holds of a slice.
  template <class F>
  void for_held(int i, int cell, Slice slice, F f) const {
    const LogicalMatrix& m = matrix(i);
    const ParamRange piece = m.layout->piece(ParamId(m.param), RankId(cell));
    m.for_runs(piece, [&](int64_t at, int64_t in, int64_t n) {
      const int64_t begin = std::max(in, slice.begin), end = std::min(in + n, slice.end);
      if (begin < end) f(at + (begin - in) - piece.begin.value, begin, end - begin);
    });
  }

  /// Where this rank's matrices lie: matrix i in batch batch_of[i] (-1: not here), from element offset[i] of
  /// it; the batches one after another from element begin[b].
  struct Places {
    std::vector<int64_t> offset, begin;
    std::vector<int> batch_of;
    size_t batch(int i) const { return static_cast<size_t>(batch_of[static_cast<size_t>(i)]); }
    int64_t in_batch(int i) const { return offset[static_cast<size_t>(i)]; }
    int64_t among_all(int i) const { return begin[batch(i)] + in_batch(i); }
  };

  /// A chunk of the list with the batches that this rank orthogonalizes.
  MuonChunk batched(const std::vector<int>& list, Places& at) const {
    MuonChunk chunk;
    chunk.matrices = list;
    std::vector<MuonBatch>& batches = chunk.batches;
    at.offset.assign(m_.size(), 0);
    at.batch_of.assign(m_.size(), -1);
    std::vector<int> mine;
    for (int i : list) {
      const auto& owners = entry(i).owners;
      if (std::find(owners.begin(), owners.end(), me_) != owners.end()) mine.push_back(i);
    }
    sort_by_shape(mine);
    for (int i : mine) {
      const LogicalMatrix& m = matrix(i);
      const PlanEntry& e = entry(i);
      const bool gram = e.mode == PlanMode::gram;
      const bool joins = !gram && !batches.empty() && !batches.back().gram() &&
                         shape_key(matrix(batches.back().matrices[0])) == shape_key(m);
      if (!joins) {
        MuonBatch b;
        b.rows = m.rows;
        b.cols = m.cols;
        b.tensor_dim = m.tensor_dim;
        b.tensor_parts = m.tensor_parts;
        if (gram) {
          b.gram_owners = e.owners;
          b.gram_index =
              static_cast<int>(std::find(e.owners.begin(), e.owners.end(), me_) - e.owners.begin());
          b.first_row = e.first_row[static_cast<size_t>(b.gram_index)];
          b.rows = e.first_row[static_cast<size_t>(b.gram_index) + 1] - b.first_row;
        }
        batches.push_back(std::move(b));
      }
      MuonBatch& b = batches.back();
      at.offset[static_cast<size_t>(i)] = b.elements() - b.first_row * b.cols;
      at.batch_of[static_cast<size_t>(i)] = static_cast<int>(batches.size()) - 1;
      b.matrices.push_back(i);
    }
    at.begin = {0};
    for (auto& b : batches) at.begin.push_back(at.begin.back() + b.elements());
    return chunk;
  }

  MuonChunk local_chunk(const std::vector<int>& list) const {
    Places places;
    MuonChunk chunk = batched(list, places);
    // One buffer holds the batches one after another, matrices as they are orthogonalized.
    for (int i : list) {
      for_held(i, cell_of(me_), {0, matrix(i).numel()}, [&](int64_t local, int64_t in, int64_t n) {
        chunk.momentum.push_back({i, local, n, places.among_all(i) + in, in});
      });
    }
    chunk.updates = chunk.momentum;
    chunk.in.send_total = places.begin.back();
    return chunk;
  }

  MuonChunk gather_chunk(const std::vector<int>& list) const {
    Places places;
    MuonChunk chunk = batched(list, places);
    int64_t at = 0;
    for (int r = 0; r < plan_.team(); ++r) {
      const int64_t first = at;
      for (int i : list) {
        for_held(i, cell_of(r), {0, matrix(i).numel()}, [&](int64_t local, int64_t in, int64_t n) {
          chunk.batches[places.batch(i)].unpack.push_back({places.in_batch(i) + in, at, n});
          if (r == me_) {
            chunk.momentum.push_back({i, local, n, at, in});
            chunk.updates.push_back({i, local, n, places.among_all(i) + in, in});
          }
          at += n;
        });
      }
      chunk.in.send.push_back(at - first);
    }
    chunk.in.recv_total = at;
    return chunk;
  }

  MuonChunk exchange_chunk(const std::vector<int>& list) const {
    Places places;
    MuonChunk chunk = batched(list, places);
    const int my_cell = cell_of(me_);
    const auto for_owned_by = [&](int rank, auto f) {  // f(matrix, slice that the rank owns)
      for (int i : list)
        for (size_t k = 0; k < entry(i).owners.size(); ++k)
          if (entry(i).owners[k] == rank) f(i, slice(i, k));
    };
    int64_t send_in = 0, recv_in = 0, send_out = 0, recv_out = 0;
    for (int peer = 0; peer < plan_.team(); ++peer) {
      const int64_t before[] = {send_in, recv_in, send_out, recv_out};
      // What the peer owns: this rank sends its piece (or leaves that to a copy), and gets the result back.
      for_owned_by(peer, [&](int i, Slice s) {
        for_held(i, my_cell, s, [&](int64_t local, int64_t in, int64_t n) {
          const bool sends = is_source(me_, peer);
          chunk.momentum.push_back({i, local, n, sends ? send_in : -1, in});
          if (sends) send_in += n;
          chunk.updates.push_back({i, local, n, recv_out, in});
          recv_out += n;
        });
      });
      // What this rank owns: the peer's piece comes, and its result goes.
      for_owned_by(me_, [&](int i, Slice s) {
        for_held(i, cell_of(peer), s, [&](int64_t, int64_t in, int64_t n) {
          const int64_t place = places.in_batch(i) + in;
          MuonBatch& batch = chunk.batches[places.batch(i)];
          if (is_source(peer, me_)) {
            batch.unpack.push_back({place, recv_in, n});
            recv_in += n;
          }
          batch.pack.push_back({send_out, place, n});
          send_out += n;
        });
      });
      chunk.in.send.push_back(send_in - before[0]);
      chunk.in.recv.push_back(recv_in - before[1]);
      chunk.out.send.push_back(send_out - before[2]);
      chunk.out.recv.push_back(recv_out - before[3]);
    }
    chunk.in.send_total = send_in;
    chunk.in.recv_total = recv_in;
    chunk.out.send_total = send_out;
    chunk.out.recv_total = recv_out;
    chunk.gram = gram_exchange(chunk);
    return chunk;
  }

  GramExchange gram_exchange(const MuonChunk& chunk) const {
    GramExchange g;
    struct Held {  // a Gram matrix of this rank
      const PlanEntry* entry;
      size_t me;              // place among the owners
      int64_t at, size, sum;  // of the matrix, its elements, and where the sum of this rank's slice lies
    };
    std::vector<Held> held;
    for (int i : chunk.matrices) g.any = g.any || entry(i).mode == PlanMode::gram;
    for (auto& b : chunk.batches) {
      if (!b.gram()) continue;
      held.push_back({&entry(b.matrices[0]), static_cast<size_t>(b.gram_index), g.elements, b.cols * b.cols,
                      g.sums_total});
      g.elements += b.cols * b.cols;
      const Slice mine = part(held.back().size, held.back().entry->owners.size(), held.back().me);
      g.sums.push_back({held.back().sum, mine.end - mine.begin, {}});
      g.sums_total += mine.end - mine.begin;
    }
    for (int peer = 0; peer < plan_.team(); ++peer) {
      const int64_t before[] = {g.partial.send_total, g.partial.recv_total, g.whole.send_total,
                                g.whole.recv_total};
      for (size_t k = 0; k < held.size(); ++k) {
        const auto& [e, me, at, size, sum] = held[k];
        const auto it = std::find(e->owners.begin(), e->owners.end(), peer);
        if (it == e->owners.end()) continue;
        const Slice mine = part(size, e->owners.size(), me);
        const Slice theirs = part(size, e->owners.size(), static_cast<size_t>(it - e->owners.begin()));
        const int64_t n = mine.end - mine.begin, m = theirs.end - theirs.begin;
        g.pack.push_back({g.partial.send_total, at + theirs.begin, m});
        g.partial.send_total += m;
        g.sums[k].from.push_back(g.partial.recv_total);
        g.partial.recv_total += n;
        g.spread.push_back({g.whole.send_total, sum, n});
        g.whole.send_total += n;
        g.unpack.push_back({at + theirs.begin, g.whole.recv_total, m});
        g.whole.recv_total += m;
      }
      g.partial.send.push_back(g.partial.send_total - before[0]);
      g.partial.recv.push_back(g.partial.recv_total - before[1]);
      g.whole.send.push_back(g.whole.send_total - before[2]);
      g.whole.recv.push_back(g.whole.recv_total - before[3]);
    }
    return g;
  }

  /// Part k of `size` elements in `parts`.
  static Slice part(int64_t size, size_t parts, size_t k) {
    const auto p = static_cast<int64_t>(parts), i = static_cast<int64_t>(k);
    return {size * i / p, size * (i + 1) / p};
  }

  std::span<const LogicalMatrix> m_;
  const MuonPlan& plan_;
  int me_;
  int64_t limit_;
  bool distributed_;
};

}  // namespace

MuonSchedule compile_schedule(std::span<const LogicalMatrix> matrices, const MuonPlan& plan, int rank,
                              int64_t chunk_elements, bool distributed) {
  return Compiler(matrices, plan, rank, chunk_elements, distributed).compile();
}

}  // namespace sherd
