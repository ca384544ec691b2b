#include <sherd/optim/whole/detail/chunks.h>

#include <algorithm>
#include <utility>

#include <sherd/optim/whole/detail/gram_exchange.h>

namespace sherd {
namespace {

/// Places of this rank's matrices: matrix i is in batch batch_of[i] (-1: not here), from element offset[i] of
/// it. The batches are one after another, from element begin[b].
struct Places {
  std::vector<int64_t> offset, begin;
  std::vector<int> batch_of;
  size_t batch(int i) const { return static_cast<size_t>(batch_of[static_cast<size_t>(i)]); }
  int64_t in_batch(int i) const { return offset[static_cast<size_t>(i)]; }
  int64_t among_all(int i) const { return begin[batch(i)] + in_batch(i); }
};

MatrixBatch batch_of(const RankView& v, int i) {
  const LogicalMatrix& m = v.matrix(i);
  const PlanEntry& e = v.entry(i);
  MatrixBatch b;
  b.rows = m.rows;
  b.cols = m.cols;
  b.tensor_dim = m.tensor_dim;
  b.tensor_parts = m.tensor_parts;
  if (e.mode == PlanMode::gram) {
    b.gram_owners = e.owners;
    b.gram_index = static_cast<int>(std::find(e.owners.begin(), e.owners.end(), v.me) - e.owners.begin());
    b.first_row = e.first_row[static_cast<size_t>(b.gram_index)];
    b.rows = e.first_row[static_cast<size_t>(b.gram_index) + 1] - b.first_row;
  }
  return b;
}

/// Returns a chunk of the list with the batches that this rank computes.
MatrixChunk batched(const RankView& v, const std::vector<int>& list, Places& at) {
  MatrixChunk chunk;
  chunk.matrices = list;
  std::vector<MatrixBatch>& batches = chunk.batches;
  at.offset.assign(v.matrices.size(), 0);
  at.batch_of.assign(v.matrices.size(), -1);
  std::vector<int> mine;
  for (int i : list) {
    const auto& owners = v.entry(i).owners;
    if (std::find(owners.begin(), owners.end(), v.me) != owners.end()) mine.push_back(i);
  }
  // Equal shapes side by side: they form one batch, which one call computes.
  v.sort_by_shape(mine);
  for (int i : mine) {
    const bool joins = v.entry(i).mode != PlanMode::gram && !batches.empty() && !batches.back().gram() &&
                       v.shape_key(batches.back().matrices[0]) == v.shape_key(i);
    if (!joins) batches.push_back(batch_of(v, i));
    MatrixBatch& b = batches.back();
    // Offsets count from the matrix's first element. A gram batch starts at first_row, hence the subtraction.
    at.offset[static_cast<size_t>(i)] = b.elements() - b.first_row * b.cols;
    at.batch_of[static_cast<size_t>(i)] = static_cast<int>(batches.size()) - 1;
    b.matrices.push_back(i);
  }
  at.begin = {0};
  for (auto& b : batches) at.begin.push_back(at.begin.back() + b.elements());
  return chunk;
}

/// Calls f(matrix, its elements that the rank owns) for the matrices of the list.
template <class F>
void for_owned_by(const RankView& v, const std::vector<int>& list, int rank, F f) {
  for (int i : list)
    for (size_t k = 0; k < v.entry(i).owners.size(); ++k)
      if (v.entry(i).owners[k] == rank) f(i, v.owned(i, k));
}

}  // namespace

MatrixChunk local_chunk(const RankView& v, const std::vector<int>& list) {
  Places places;
  MatrixChunk chunk = batched(v, list, places);
  for (int i : list) {
    v.for_held(i, v.cell_of(v.me), v.all_of(i), [&](int64_t local, int64_t in, int64_t n) {
      chunk.inputs.push_back({i, local, n, places.among_all(i) + in, in});
    });
  }
  chunk.updates = chunk.inputs;
  chunk.in.send_total = places.begin.back();
  return chunk;
}

MatrixChunk gather_chunk(const RankView& v, const std::vector<int>& list) {
  Places places;
  MatrixChunk chunk = batched(v, list, places);
  int64_t at = 0;
  for (int r = 0; r < v.plan.team(); ++r) {
    const int64_t first = at;
    for (int i : list) {
      v.for_held(i, v.cell_of(r), v.all_of(i), [&](int64_t local, int64_t in, int64_t n) {
        // Messages are ordered by rank, batches by matrix.
        chunk.batches[places.batch(i)].unpack.push_back({places.in_batch(i) + in, at, n});
        if (r == v.me) {
          chunk.inputs.push_back({i, local, n, at, in});
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

MatrixChunk exchange_chunk(const RankView& v, const std::vector<int>& list) {
  Places places;
  MatrixChunk chunk = batched(v, list, places);
  int64_t &send_in = chunk.in.send_total, &recv_in = chunk.in.recv_total;
  int64_t &send_out = chunk.out.send_total, &recv_out = chunk.out.recv_total;
  for (int peer = 0; peer < v.plan.team(); ++peer) {
    // Both ends walk the peer's matrices in the order of `list`: offsets agree without exchanged metadata.
    const int64_t before[] = {send_in, recv_in, send_out, recv_out};
    // Matrices of the peer: this rank sends its piece (or leaves that to a copy), and receives the result.
    for_owned_by(v, list, peer, [&](int i, Slice s) {
      v.for_held(i, v.cell_of(v.me), s, [&](int64_t local, int64_t in, int64_t n) {
        const bool sends = v.is_source(v.me, peer);
        // Every copy updates its momentum; only one of them sends it.
        chunk.inputs.push_back({i, local, n, sends ? send_in : -1, in});
        if (sends) send_in += n;
        chunk.updates.push_back({i, local, n, recv_out, in});
        recv_out += n;
      });
    });
    // Matrices of this rank: it receives the peer's piece, and sends its result.
    for_owned_by(v, list, v.me, [&](int i, Slice s) {
      v.for_held(i, v.cell_of(peer), s, [&](int64_t, int64_t in, int64_t n) {
        const int64_t place = places.in_batch(i) + in;
        MatrixBatch& batch = chunk.batches[places.batch(i)];
        if (v.is_source(peer, v.me)) {
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
  chunk.gram = gram_exchange(v, chunk);
  return chunk;
}

}  // namespace sherd
