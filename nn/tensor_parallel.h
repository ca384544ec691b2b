// Tensor-parallel linear layers, computed by a group of ranks together.
//
// A column-parallel layer holds some of its outputs on each rank and takes the whole input; a row-parallel
// one holds some of its inputs and gives, summed over the ranks, the whole output. One after the other, with
// anything between them that treats columns by themselves, they need one sum forward and one backward.
#pragma once

#include <memory>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/parameter.h>
#include <sherd/nn/loss.h>
#include <sherd/nn/var.h>

namespace sherd::nn {

/// The ranks that share one copy of a model's matrices; by default a group of one, which sends nothing.
/// Everything here runs on the compute stream, the same on all ranks of the group.
struct TensorParallel {
  std::shared_ptr<Communicator> comm;  // null in a group of one

  /// The ranks of mesh dimension "tp", with a communicator of their own; collective. A mesh without it has
  /// groups of one.
  static TensorParallel of(const DeviceMesh& mesh);

  int size() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  /// This rank's share of n; size() divides n.
  int64_t share(int64_t n) const { return n / size(); }

  /// Declares p, which has the local shape, to be this rank's piece along `dim`.
  Parameter cut(Parameter p, int dim) const;

  /// x itself, for column-parallel layers, of which each has a part of its gradient: backward sums those.
  Var copied(const Var& x) const;
  /// The sum of all ranks' x, which are summands that a row-parallel layer has just made and nobody else
  /// reads.
  Var summed(const Var& x) const;

  /// Rows [begin_of(n, rank), begin_of(n, rank + 1)) of n are a rank's part of them; parts differ by a row at
  /// most, and are empty where there are more ranks than rows.
  int64_t begin_of(int64_t n, int of_rank) const { return n * of_rank / size(); }
  /// This rank's part of the rows of x [n, d], which is the same on all ranks. Backward puts the parts'
  /// gradients together on every rank.
  Var split_rows(const Var& x) const;
  /// The way back: all n rows on every rank, of x, this rank's part. The gradient of the result is the same
  /// on all ranks; backward takes this rank's part of it.
  Var gather_rows(const Var& x, int64_t n) const;

  /// This rank's part of the rows of `all` [n, d]; no copy.
  Tensor own_rows(const Tensor& all) const;
  /// All n rows, of every rank's part [., d].
  Tensor all_rows(Stream& s, const Tensor& part, int64_t n) const;
  /// This rank's part of the rows of the sum of all ranks' x [n, d], in the bits that `summed` has there.
  Tensor own_rows_of_sum(Stream& s, const Tensor& x) const;

  /// [parts, x...]: every rank's x, in rank order. Of a group of one: x itself with the new dimension.
  Tensor gather(Stream& s, const Tensor& x) const;
  /// Every rank's columns x [rows, cols] side by side.
  Tensor gather_columns(Stream& s, const Tensor& x) const;
};

/// `residual` plus the sum of linear() of x over the ranks, in one product where there is nothing to sum.
Var add_row_parallel(const TensorParallel& tp, const Var& residual, const Var& x, const Parameter& w);

/// nn::cross_entropy() of logits [rows, vocab] whose columns lie on the ranks of `tp`. Backward overwrites
/// the logits, which nobody else may use.
CrossEntropy vocab_parallel_cross_entropy(const TensorParallel& tp, const Var& logits, const Tensor& targets,
                                          float scale);

}  // namespace sherd::nn
