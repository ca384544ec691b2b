// Context parallelism: sequences sliced over ranks, each with the same slice of every sequence.
//
// Functions of single positions run on slices. Attention needs whole sequences: ranks exchange q, k and v by
// heads, each computes attention of its share of the heads over all positions, and the results are exchanged back (Jacobs et
// al., DeepSpeed Ulysses, 2023, arXiv 2309.14509). A head's attention thus has the bits that one rank computes, and every
// rank has as many pairs of a causal mask as the others.
//
// Per attention and forward, with C ranks, a rank receives the (C - 1) / C-th part of its rows of q, k and v, and of the result:
//     here * (C - 1) / C * (2 * heads + 2 * kv_heads) * head_dim
// elements where the slices are equal; as many in backward.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/nn/var.h>

namespace sherd::nn {

/// Ranks that share sequences; by default a group of one. All functions run on the compute stream. Collective functions are
/// called by every rank of the group.
struct ContextParallel {
  std::shared_ptr<Communicator> comm{};  // null in a group of one

  /// Returns the ranks of a mesh dimension (FullyShardOptions::context_dim), with a communicator of their own; collective.
  /// A mesh without it has groups of one.
  static ContextParallel of(const DeviceMesh& mesh, const std::string& dim = "context");

  int size() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  /// Returns the start of a rank's slice of a sequence: [begin_of(seq, rank), begin_of(seq, rank + 1)). Slices differ by at
  /// most one position; rank 0 has one of the longest.
  int64_t begin_of(int64_t seq, int of_rank) const { return (seq * of_rank + size() - 1) / size(); }
  /// Returns begin and end of this rank's slice. @throws InvalidArgument for sequences shorter than the number of ranks.
  std::pair<int64_t, int64_t> own_positions(int64_t seq) const;
  /// Returns this rank's slices [batch, here] of x [batch, seq]: tokens, targets that were shifted before, and other values
  /// for each position. @throws ShapeMismatch; InvalidArgument for sequences shorter than the number of ranks.
  Tensor slice(const Tensor& x) const;
  /// Returns [batch * seq, d] on every rank from each one's rows [batch * here, d]. Collective.
  Tensor whole(Stream& s, const Tensor& rows, int64_t seq) const;
};

/// Sequences of one forward that the ranks of a group share. By default no group.
struct SequenceSlice {
  ContextParallel ranks{};
  int64_t seq = 0;  // positions of each sequence, on all ranks together; of no effect in a group of one

  bool cuts() const { return ranks.size() > 1; }
  /// Returns this rank's first position in every sequence.
  int64_t first() const { return cuts() ? ranks.begin_of(seq, ranks.rank()) : 0; }
  /// Returns the positions of this rank in a sequence of `own` rows on it.
  int64_t positions(int64_t own) const { return cuts() ? seq : own; }

  /// Exchanges columns for rows: x [batch * here, sum of blocks] has blocks of columns, such as q, k and v; the result
  /// [batch * seq, sum of blocks / size] the rank's share of each block, [rank, rank + 1) * block / size, of all positions.
  /// Backward is to_rows(). Collective, forward and backward.
  /// @throws ShapeMismatch for an x of other rows or columns; InvalidArgument for blocks that the ranks do not divide, and for
  /// sequences shorter than the number of ranks.
  Var to_heads(const Var& x, const std::vector<int64_t>& blocks, int64_t batch) const;
  /// Returns the inverse: [batch * here, sum of blocks] of [batch * seq, sum of blocks / size].
  Var to_rows(const Var& x, const std::vector<int64_t>& blocks, int64_t batch) const;
  /// Write the same to `out`, which has the result's shape, without a tape. `s` is the compute stream, and the caller keeps the
  /// memory of both until it has run this. Not in a group of one.
  void to_heads(Stream& s, const Tensor& out, const Tensor& x, const std::vector<int64_t>& blocks,
                int64_t batch) const;
  void to_rows(Stream& s, const Tensor& out, const Tensor& x, const std::vector<int64_t>& blocks,
               int64_t batch) const;
};

}  // namespace sherd::nn
