// Schedule of one rank: the elements that it packs, sends, receives and updates, between the storage layout
// and the compute layout of a plan. Private to optim/.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/muon/muon.h>

namespace sherd {

/// `count` elements of a parameter piece on this rank, from element `local` of the piece; `at` is their place
/// in a message or a matrix buffer (-1: none). `first` is their place in the matrix.
struct PieceSegment {
  int matrix = 0;
  int64_t local = 0, count = 0, at = 0, first = 0;
};

/// Matrices of one shape that this rank computes in one call.
struct MatrixBatch {
  std::vector<int> matrices;
  /// Size of each matrix on this rank: gram owners hold a range of the rows.
  int64_t rows = 0, cols = 0;
  int tensor_dim = -1, tensor_parts = 1;
  /// Owners of the one matrix of a gram batch, in order, and this rank's place among them; else empty.
  std::vector<int> gram_owners;
  int gram_index = 0;
  int64_t first_row = 0;
  int64_t status_at = 0;            // of the first matrix in the team's statuses; set by MatrixTeam
  std::vector<CopySegment> unpack;  // received message -> matrices
  std::vector<CopySegment> pack;    // results -> message to send
  int64_t elements() const { return static_cast<int64_t>(matrices.size()) * rows * cols; }
  bool gram() const { return !gram_owners.empty(); }
};

/// Sizes of one all-to-all-v, in elements by peer.
struct Exchange {
  std::vector<int64_t> send, recv;
  int64_t send_total = 0, recv_total = 0;
};

/// Sum of partial Gram matrices over their owners, for all gram batches of a chunk at once: slice k of a
/// partial matrix goes to owner k, which adds the slices in the owners' order and sends the sum to every
/// owner.
struct GramExchange {
  struct Sum {
    int64_t to = 0, count = 0;
    std::vector<int64_t> from;  // in the received message, by owner
  };
  bool any = false;      // the chunk has gram entries, on whatever rank
  int64_t elements = 0;  // of this rank's Gram matrices, batch after batch
  int64_t sums_total = 0;
  Exchange partial, whole;
  std::vector<CopySegment> pack, spread, unpack;  // grams -> message; sums -> message; message -> grams
  std::vector<Sum> sums;
};

/// Matrices that travel together.
struct MatrixChunk {
  std::vector<int> matrices;
  std::vector<MatrixBatch> batches;   // that this rank computes
  std::vector<PieceSegment> inputs;   // into the message to the owners
  std::vector<PieceSegment> updates;  // from the message with the results (gather: from the matrices)
  Exchange in, out;
  GramExchange gram;
};

/// All work of this rank in a step, in order: `local` batches need no message; `exchanged` chunks one
/// all-to-all-v each way; `gathered` chunks one all-gather-v (in.send holds every rank's count).
struct MatrixSchedule {
  std::vector<MatrixChunk> local, exchanged, gathered;
};

}  // namespace sherd
