// Tensor-parallel linear layers, computed by a group of ranks together.
//
// A column-parallel layer holds some of its outputs on each rank and takes the whole input; a row-parallel
// one holds some of its inputs and gives, summed over the ranks, the whole output. One after the other, with
// anything between them that treats columns by themselves, they need one sum forward and one backward.
#pragma once

#include <memory>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/parameter.h>
#include <sherd/nn/loss.h>
#include <sherd/nn/var.h>

namespace sherd::nn {

/// Ranks that share one copy of a model's matrices; by default a group of one, which sends nothing. All
/// functions run on the compute stream, the same on all ranks of the group.
struct TensorParallel {
  std::shared_ptr<Communicator> comm;  // null in a group of one

  /// Returns the ranks of mesh dimension "tp", with a communicator of their own; collective. A mesh without
  /// it has groups of one.
  static TensorParallel of(const DeviceMesh& mesh);

  int size() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  /// Returns this rank's share of n; size() divides n.
  int64_t share(int64_t n) const { return n / size(); }

  /// Declares p, which has the local shape, to be this rank's piece along `dim`.
  Parameter cut(Parameter p, int dim) const;

  /// Returns x itself, for column-parallel layers, each of which has a part of its gradient: backward sums
  /// these.
  Var copied(const Var& x) const;
  /// Returns the sum of all ranks' x, summands that a row-parallel layer has just made and no other function
  /// reads.
  Var summed(const Var& x) const;

  /// Returns the start of a rank's part of n rows: [begin_of(n, rank), begin_of(n, rank + 1)). Parts differ
  /// by at most one row, and are empty where there are more ranks than rows.
  int64_t begin_of(int64_t n, int of_rank) const { return n * of_rank / size(); }
  /// Returns this rank's part of the rows of x [n, d], which is the same on all ranks. Backward gathers the
  /// parts' gradients on every rank.
  Var split_rows(const Var& x) const;
  /// Gathers all n rows on every rank from x, this rank's part; for evaluation, without a backward. In
  /// training, SequenceRows::enter() gathers rows for functions of which each rank computes another part (a
  /// contrastive loss of the rank's own rows), enter_both().whole for those that all ranks compute alike.
  /// @throws InvalidArgument for an x that needs a gradient, outside of NoGrad, in a group of several ranks.
  Var gather_rows(const Var& x, int64_t n) const;

  /// Returns this rank's part of the rows of `all` [n, d]; no copy.
  Tensor own_rows(const Tensor& all) const;
  /// Returns all n rows, of every rank's part [., d].
  Tensor all_rows(Stream& s, const Tensor& part, int64_t n) const;
  /// Returns this rank's part of the rows of the sum of all ranks' x [n, d], with the bits of `summed`.
  Tensor own_rows_of_sum(Stream& s, const Tensor& x) const;

  /// Returns [parts, x...]: every rank's x, in rank order. In a group of one: x itself with the new
  /// dimension.
  Tensor gather(Stream& s, const Tensor& x) const;
  /// Returns every rank's columns x [rows, cols] side by side.
  Tensor gather_columns(Stream& s, const Tensor& x) const;
};

/// Returns `residual` plus the sum of linear() of x over the ranks, in one product on a single
/// rank.
Var add_row_parallel(const TensorParallel& tp, const Var& residual, const Var& x, const Parameter& w);

/// Returns nn::cross_entropy() of logits [rows, vocab] with columns sharded over the ranks of `tp`. Backward
/// overwrites the logits, which no other function may use.
CrossEntropy vocab_parallel_cross_entropy(const TensorParallel& tp, const Var& logits, const Tensor& targets,
                                          float scale);

}  // namespace sherd::nn
