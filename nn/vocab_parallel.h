// Vocabulary-parallel tables and heads, sharded over a tensor-parallel group.
#pragma once

#include <cstdint>

#include <sherd/nn/function.h>
#include <sherd/nn/loss.h>
#include <sherd/nn/sequence_parallel.h>

namespace sherd::nn {

/// Vocabulary with piece r on rank r: ceil(vocab / ranks) rows each, the last ones with padding after the
/// vocabulary (TensorShard::size).
struct VocabularyCut {
  TensorParallel tp{};
  int64_t vocab = 0;

  /// Returns the rows that every rank declares.
  int64_t rows() const { return (vocab + tp.size() - 1) / tp.size(); }
  /// Return the first token of this rank (vocab, where it has none), and the number of its rows that are
  /// tokens.
  int64_t begin() const { return tp.rank() * rows() < vocab ? tp.rank() * rows() : vocab; }
  int64_t tokens() const;
  /// Returns the columns of all ranks, [n, vocab], from each rank's [n, rows()].
  Tensor whole(Stream& s, const Tensor& own) const;
  /// Declares p [rows(), d] to be this rank's piece of [vocab, d].
  Parameter cut(Parameter p) const;
};

/// embedding() of a table that is cut, the same bits on every rank as whole (but for the sign of zeros): each gives
/// its tokens' rows, and the sum over the ranks adds zeros to them. `positions` are whole on every rank. Backward has
/// no sum.
/// @param split each rank gets its part of the rows alone (SequenceRows of all tokens), of the same bits.
Var vocab_parallel_embedding(const VocabularyCut& cut, const Var& tokens, const Parameter& table,
                             const Parameter& positions = {}, bool split = false, int64_t first_position = 0);

/// linear_cross_entropy() of a head [rows(), d] that is cut; x is the same on every rank, and so are losses
/// and objective. No more than `chunk` rows' logits of this rank's columns exist at once (0: those of all
/// rows, computed once and kept). The gradient of x is summed over the ranks. In a group of one it is
/// linear_cross_entropy() itself.
/// @param split x is this rank's part of the rows alone (SequenceRows of all targets); losses are those of
/// all rows.
CrossEntropy vocab_parallel_linear_cross_entropy(const VocabularyCut& cut, const Var& x,
                                                 const Parameter& head, const Tensor& targets, float scale,
                                                 int64_t chunk = 0, bool split = false);

/// Returns the logits [n, vocab] of such a head on every rank, without a backward.
Tensor vocab_parallel_logits(const VocabularyCut& cut, const Var& x, const Parameter& head);

}  // namespace sherd::nn
