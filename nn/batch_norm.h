// Normalisation of channels: batch and group norm, composed of arithmetic and reductions.
#pragma once

#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/nn/algebra.h>

namespace sherd::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;  ///< weight of a batch in the running statistics
  /// Running statistics, f32 [channels], for example buffers of the module; both or neither. A recorded forward sets
  /// them to (1 - momentum) * themselves + momentum * those of its batch (the variance unbiased).
  Tensor running_mean{}, running_variance{};
  /// The batch's statistics normalise; otherwise the running ones.
  bool training = true;
  /// Ranks whose batches together are the batch of the statistics, of unequal sizes or empty on some; all of them call, with
  /// running statistics that are equal on all. Null: this rank's batch alone. (torch.nn.SyncBatchNorm.)
  std::shared_ptr<Communicator> ranks = nullptr;
};

/// Returns (x - mean) / sqrt(variance + eps) * w + bias for each channel of x [n, channels, ...], with the statistics of
/// the batch; w and bias are [channels]. (Ioffe and Szegedy, 2015, arXiv:1502.03167.)
/// @throws InvalidArgument for running statistics that are missing or of another shape.
Var batch_norm(const Var& x, const Var& w, const Var& bias, const BatchNormOptions& options = {});
/// Returns the same with the statistics of each sample and group of neighbouring channels; `groups` divides the channels.
/// (Wu and He, 2018, arXiv:1803.08494.) @throws InvalidArgument for groups that do not.
Var group_norm(const Var& x, int64_t groups, const Var& w, const Var& bias, double eps = 1e-5);

}  // namespace sherd::nn
