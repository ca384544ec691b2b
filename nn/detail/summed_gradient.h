// Gradients of parameters that are unsharded on the ranks of a group, each of which computes a part.
#pragma once

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn::detail {

/// Adds the sum over the ranks of what `write`(GradTarget) gives to w's gradient, in the same bits on all of
/// them. `write` writes every element with the beta that it gets. A collective of `tp`, unless w is frozen.
template <class F>
void add_summed(Stream& s, const TensorParallel& tp, const Parameter& w, F write) {
  if (w.frozen()) return;
  const GradTarget target = w.grad_for_overwrite();
  if (tp.size() == 1) return write(target);
  // The present content of grad is summed already.
  const Tensor part = target.beta == 0 ? target.grad : like(target.grad);
  write(GradTarget{part, 0});
  tp.comm->all_reduce(s, part.unowned_view());
  if (target.beta != 0) ops::scaled_add(s, target.grad, 1, part);
}

}  // namespace sherd::nn::detail
