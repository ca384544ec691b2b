// Linear layers that a tensor-parallel group of ranks computes together.
//
// A column-parallel layer holds some of its outputs on each rank and takes the whole input; a row-parallel
// one holds some of its inputs and gives, summed over the ranks, the whole output. One after the other, with
// anything between them that treats columns by themselves, they need one sum forward and one backward.
#pragma once

#include <memory>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/module.h>

namespace train_gpt {

using sherd::Parameter;
using sherd::Stream;
using sherd::Tensor;

/// The ranks that share one copy of a model's matrices; by default a group of one, which sends nothing.
/// Everything here runs on the stream it is given, the same on all ranks of the group.
struct TensorParallel {
  std::shared_ptr<sherd::Communicator> comm;  // null in a group of one

  /// The ranks of mesh dimension "tp", with a communicator of their own; collective. A mesh without it has
  /// groups of one.
  static TensorParallel of(const sherd::DeviceMesh& mesh);

  int size() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  /// This rank's share of n; size() divides n.
  int64_t share(int64_t n) const { return n / size(); }

  /// Declares p, which has the local shape, to be this rank's piece along `dim`.
  Parameter cut(Parameter p, int dim) const;
  /// x = the sum of all ranks' x.
  void sum(Stream& s, const Tensor& x) const;
  /// [parts, x...]: every rank's x, in rank order. Of a group of one: x itself with the new dimension.
  Tensor gather(Stream& s, const Tensor& x) const;
  /// Every rank's columns x [rows, cols] side by side.
  Tensor gather_columns(Stream& s, const Tensor& x) const;
};

/// Memory for an activation of x's dtype.
Tensor like(const Tensor& x, sherd::Shape shape);
/// The same in f32.
Tensor like_f32(const Tensor& x, sherd::Shape shape);

/// Adds x^T dy, transposed, which is the gradient of w where it made linear() of x; overwrites when it is the
/// first.
void weight_backward(Stream& s, const Parameter& w, const Tensor& dy, const Tensor& x);

/// x [n, in] times the transpose of w [out, in]; of a row-parallel w a summand of the result.
Tensor linear(Stream& s, const Tensor& x, const Parameter& w);
/// Adds the weight's gradient and returns the input's; of a column-parallel w a summand of it.
Tensor linear_backward(Stream& s, const Tensor& dy, const Tensor& x, const Parameter& w);

/// linear_backward() where x is gelu(pre): the gradient of pre.
Tensor linear_gelu_backward(Stream& s, const Tensor& dy, const Tensor& x, const Tensor& pre,
                            const Parameter& w);

/// linear() of a row-parallel w, summed.
Tensor row_parallel(Stream& s, const TensorParallel& tp, const Tensor& x, const Parameter& w);
/// `residual` plus row_parallel() of x, in one product where there is nothing to sum over ranks.
Tensor add_row_parallel(Stream& s, const TensorParallel& tp, const Tensor& residual, const Tensor& x,
                        const Parameter& w);
/// linear_backward() of a column-parallel w, summed.
Tensor column_parallel_backward(Stream& s, const TensorParallel& tp, const Tensor& dy, const Tensor& x,
                                const Parameter& w);

/// Losses f32 [rows] of logits [rows, vocab] whose columns lie on the ranks of `tp`, and what backward needs.
struct ParallelCrossEntropy {
  Tensor targets, lse;
  float scale = 1;
  Tensor forward(Stream& s, const TensorParallel& tp, const Tensor& logits, const Tensor& targets);
  /// The same when backward() will follow, which takes the gradient of `scale` times the sum of the losses. A
  /// group of one overwrites the logits with it at once: they are read and written once.
  Tensor forward_for_backward(Stream& s, const TensorParallel& tp, const Tensor& logits,
                              const Tensor& targets, float scale);
  /// Overwrites the logits, unchanged since, with their gradient.
  void backward(Stream& s, const TensorParallel& tp, const Tensor& logits) const;
};

}  // namespace train_gpt
